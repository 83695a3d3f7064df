//! Kinds of errors as they are written down.

/// An [`ErrorKind`](forebay_engine::ErrorKind) by its name.
pub(super) mod kind {
    use forebay_engine::ErrorKind;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(kind: &ErrorKind, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(kind.name())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<ErrorKind, D::Error> {
        Ok(ErrorKind::named(&String::deserialize(from)?))
    }
}

/// A [`RemoteError`](forebay_engine::RemoteError) as its kind's name and its message.
pub(super) mod error {
    use forebay_engine::{ErrorKind, RemoteError};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) fn serialize<S: Serializer>(error: &RemoteError, to: S) -> Result<S::Ok, S::Error> {
        (error.kind.name(), &error.message).serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<RemoteError, D::Error> {
        let (kind, message) = <(String, String)>::deserialize(from)?;
        Ok(RemoteError::new(ErrorKind::named(&kind), message))
    }
}
