//! Actions of our own, and messages of Flight's session actions, which the arrow crates do not have yet.
//! Their names and numbers are those of the Arrow Flight protocol.

use std::collections::HashMap;

use prost::Message;

/// Tells how much of the session's query is done: from 0 to 1, as text. It tells nothing if nobody knows,
/// or if the session reads several queries or none. Clients that can poll ask for a flight's `PollInfo`;
/// this is for those that cannot, as ADBC's and pyarrow's.
pub(in crate::flight) const PROGRESS: &str = "forebay.progress";

/// Ends a stream, whose name is its body.
pub(in crate::flight) const CLOSE_STREAM: &str = "forebay.stream.close";

/// The value of an option.
#[derive(Clone, PartialEq, Message)]
pub(in crate::flight) struct OptionValue {
    #[prost(oneof = "Value", tags = "1, 2, 3, 4, 5")]
    pub(in crate::flight) value: Option<Value>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(in crate::flight) enum Value {
    #[prost(string, tag = "1")]
    String(String),
    #[prost(bool, tag = "2")]
    Bool(bool),
    #[prost(sfixed64, tag = "3")]
    Int64(i64),
    #[prost(double, tag = "4")]
    Double(f64),
    #[prost(message, tag = "5")]
    StringList(StringList),
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::flight) struct StringList {
    #[prost(string, repeated, tag = "1")]
    pub(in crate::flight) values: Vec<String>,
}

impl OptionValue {
    pub(in crate::flight) fn text(text: impl Into<String>) -> Self {
        Self { value: Some(Value::String(text.into())) }
    }

    /// As `SET` takes it.
    pub(in crate::flight) fn as_text(&self) -> Option<String> {
        Some(match self.value.as_ref()? {
            Value::String(value) => value.clone(),
            Value::Bool(value) => value.to_string(),
            Value::Int64(value) => value.to_string(),
            Value::Double(value) => value.to_string(),
            Value::StringList(list) => list.values.join(","),
        })
    }
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::flight) struct SetSessionOptionsRequest {
    #[prost(map = "string, message", tag = "1")]
    pub(in crate::flight) session_options: HashMap<String, OptionValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::flight) struct SetSessionOptionsResult {
    #[prost(map = "string, message", tag = "1")]
    pub(in crate::flight) errors: HashMap<String, OptionError>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(in crate::flight) struct OptionError {
    #[prost(enumeration = "OptionErrorValue", tag = "1")]
    pub(in crate::flight) value: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub(in crate::flight) enum OptionErrorValue {
    Unspecified = 0,
    InvalidName = 1,
    InvalidValue = 2,
    Error = 3,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::flight) struct GetSessionOptionsResult {
    #[prost(map = "string, message", tag = "1")]
    pub(in crate::flight) session_options: HashMap<String, OptionValue>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(in crate::flight) struct CloseSessionResult {
    #[prost(enumeration = "CloseStatus", tag = "1")]
    pub(in crate::flight) status: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub(in crate::flight) enum CloseStatus {
    Unspecified = 0,
    Closed = 1,
    Closing = 2,
    NotCloseable = 3,
}
