//! `text_chunk(text, max_tokens, overlap [, model])`: a document as a list of texts, to be unnested.
//!
//! Without a model it counts words. With one, planning puts [`TEXT_CHUNK_BY`] in its place, whose
//! fourth argument says where the model's tokenizer is: the function runs in processes that have no
//! catalog, and is asynchronous because it may have to fetch the package.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, ListBuilder, StringBuilder};
use arrow::datatypes::DataType;
use async_trait::async_trait;
use datafusion::common::{Result, ScalarValue, exec_err, internal_err, plan_err};
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::logical_expr::async_udf::{AsyncScalarUDF, AsyncScalarUDFImpl};
use datafusion::logical_expr::{
    ColumnarValue, Documentation, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};

use super::super::arguments::{OnBadValue, text, whole_number};
use super::chunk::{Limits, chunks};
use super::reference::TokenizerReference;
use super::tokens::{Tokens, Words};
use crate::feature::docs::documentation;

/// The function's name in SQL.
pub const TEXT_CHUNK: &str = "text_chunk";
/// What planning puts in its place for a model. No session has it by name: whoever could call it could
/// have any package read.
pub const TEXT_CHUNK_BY: &str = "text_chunk_by";

const USAGE: &str = "text_chunk(text, max_tokens, overlap [, model])";

/// Texts that are cut before other work gets its turn.
const SLICE_ROWS: usize = 256;

/// `text_chunk` and `try_text_chunk`.
pub(crate) fn by_words() -> Vec<Arc<ScalarUDF>> {
    let under = |on_bad_value| {
        let signature = Signature::user_defined(Volatility::Immutable);
        Arc::new(ScalarUDF::from(ByWords(Chunker::new(TEXT_CHUNK, on_bad_value, signature))))
    };
    [OnBadValue::Fail, OnBadValue::Null].map(under).into()
}

/// The same by models, whose packages are in `stores`.
pub(crate) fn by_tokenizer(stores: &Arc<RuntimeEnv>) -> Vec<Arc<ScalarUDF>> {
    let under = |on_bad_value| {
        // What the other function's arguments are after coercion: this one is asynchronous, and
        // DataFusion does not ask such functions for types of their own.
        let types = vec![DataType::Utf8, DataType::Int64, DataType::Int64, DataType::Utf8];
        let signature = Signature::exact(types, Volatility::Immutable);
        let chunker = Chunker::new(TEXT_CHUNK_BY, on_bad_value, signature);
        let function = ByTokenizer { chunker, stores: Arc::clone(stores) };
        Arc::new(AsyncScalarUDF::new(Arc::new(function)).into_scalar_udf())
    };
    [OnBadValue::Fail, OnBadValue::Null].map(under).into()
}

/// What both functions have in common.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Chunker {
    name: String,
    on_bad_value: OnBadValue,
    signature: Signature,
}

impl Chunker {
    fn new(name: &str, on_bad_value: OnBadValue, signature: Signature) -> Self {
        Self { name: on_bad_value.name_of(name), on_bad_value, signature }
    }

    /// Appends the chunks of some rows.
    fn append(
        &self,
        lists: &mut Lists,
        columns: &[ArrayRef],
        rows: Range<usize>,
        tokens: &impl Tokens,
    ) -> Result<()> {
        let [texts, max_tokens, overlap, ..] = columns else {
            return internal_err!("{} has {} arguments", self.name, columns.len());
        };
        for row in rows {
            let numbers = whole_number(max_tokens, row)?.zip(whole_number(overlap, row)?);
            let found = match (text(texts, row)?, numbers) {
                (Some(text), Some(numbers)) => {
                    self.on_bad_value.apply(TEXT_CHUNK, chunks_of(text, numbers, tokens))?
                }
                _ => None,
            };
            lists.append(found)?;
        }
        Ok(())
    }

    fn by_words(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let is_constant = args.args.iter().all(|arg| matches!(arg, ColumnarValue::Scalar(_)));
        let rows = if is_constant { 1 } else { args.number_rows };
        let columns = arrays(args.args, rows)?;
        let mut lists = Lists::default();
        self.append(&mut lists, &columns, 0..rows, &Words)?;
        let column = lists.finish();
        if is_constant {
            Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&column, 0)?))
        } else {
            Ok(ColumnarValue::Array(column))
        }
    }
}

fn arrays(args: Vec<ColumnarValue>, rows: usize) -> Result<Vec<ArrayRef>> {
    args.into_iter().map(|arg| arg.into_array(rows)).collect()
}

fn chunks_of<'a>(
    text: &'a str,
    (max_tokens, overlap): (i64, i64),
    tokens: &impl Tokens,
) -> std::result::Result<Vec<&'a str>, String> {
    let limits = Limits::try_new(max_tokens, overlap, tokens.special())?;
    chunks(text, &tokens.of(text)?, limits, |text| tokens.count(text))
}

/// Lists of texts, within what an array of them can hold.
#[derive(Default)]
struct Lists {
    builder: ListBuilder<StringBuilder>,
    bytes: usize,
}

impl Lists {
    fn append(&mut self, texts: Option<Vec<&str>>) -> Result<()> {
        for text in texts.iter().flatten() {
            self.bytes += text.len();
            if self.bytes > i32::MAX as usize {
                return exec_err!(
                    "{TEXT_CHUNK}: the chunks of one batch have more than 2 GiB; SET \
                     datafusion.execution.batch_size to fewer rows"
                );
            }
            self.builder.values().append_value(text);
        }
        self.builder.append(texts.is_some());
        Ok(())
    }

    fn finish(mut self) -> ArrayRef {
        Arc::new(self.builder.finish())
    }
}

fn list_type() -> DataType {
    DataType::new_list(DataType::Utf8, true)
}

/// By the rule for words.
#[derive(Debug, PartialEq, Eq, Hash)]
struct ByWords(Chunker);

impl ScalarUDFImpl for ByWords {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn signature(&self) -> &Signature {
        &self.0.signature
    }

    fn documentation(&self) -> Option<&Documentation> {
        documentation(self.name())
    }

    fn coerce_types(&self, found: &[DataType]) -> Result<Vec<DataType>> {
        let is_text = |at: usize| found[at].is_string() || found[at].is_null();
        let is_number = |at: usize| found[at].is_integer() || found[at].is_null();
        let fits = matches!(found.len(), 3 | 4)
            && (0..found.len())
                .all(|at| if matches!(at, 1 | 2) { is_number(at) } else { is_text(at) });
        if !fits {
            let found: Vec<String> = found.iter().map(ToString::to_string).collect();
            return plan_err!(
                "{} got ({}), expected {USAGE} with texts and whole numbers",
                self.0.name,
                found.join(", ")
            );
        }
        let coerced = (0..found.len())
            .map(|at| if matches!(at, 1 | 2) { DataType::Int64 } else { DataType::Utf8 });
        Ok(coerced.collect())
    }

    fn return_type(&self, _found: &[DataType]) -> Result<DataType> {
        Ok(list_type())
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        match args.args.len() {
            3 => self.0.by_words(args),
            _ => exec_err!(
                "{}: the model must be a constant: its tokenizer is looked up when the query is \
                 planned",
                self.0.name
            ),
        }
    }
}

/// By the tokenizer that the fourth argument refers to.
#[derive(Debug)]
struct ByTokenizer {
    chunker: Chunker,
    stores: Arc<RuntimeEnv>,
}

/// In every process it is the same function.
impl PartialEq for ByTokenizer {
    fn eq(&self, other: &Self) -> bool {
        self.chunker == other.chunker
    }
}

impl Eq for ByTokenizer {}

impl std::hash::Hash for ByTokenizer {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.chunker.hash(state);
    }
}

impl ScalarUDFImpl for ByTokenizer {
    fn name(&self) -> &str {
        &self.chunker.name
    }

    fn signature(&self) -> &Signature {
        &self.chunker.signature
    }

    fn return_type(&self, _found: &[DataType]) -> Result<DataType> {
        Ok(list_type())
    }

    fn invoke_with_args(&self, _args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        internal_err!("{} is asynchronous", self.chunker.name)
    }
}

#[async_trait]
impl AsyncScalarUDFImpl for ByTokenizer {
    /// A batch comes whole: DataFusion would put the parts of one together without asking whether they
    /// fit into an array.
    async fn invoke_async_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let reference = match args.args.get(3) {
            Some(ColumnarValue::Scalar(value)) => value.try_as_str().flatten().map(str::to_owned),
            // A constant may have become a column of one value.
            Some(ColumnarValue::Array(column)) if !column.is_empty() => {
                text(column, 0)?.map(str::to_owned)
            }
            _ => None,
        };
        let Some(reference) = reference else {
            return exec_err!("{}: there is no tokenizer, expected {USAGE}", self.chunker.name);
        };
        let tokens = TokenizerReference::parse(&reference)?.load(&self.stores).await?;
        // A constant too becomes a column: DataFusion makes one row of what is a single value.
        let rows = args.number_rows;
        let columns = arrays(args.args, rows)?;
        let mut lists = Lists::default();
        for start in (0..rows).step_by(SLICE_ROWS) {
            let slice = start..rows.min(start + SLICE_ROWS);
            self.chunker.append(&mut lists, &columns, slice, &*tokens)?;
            tokio::task::yield_now().await;
        }
        Ok(ColumnarValue::Array(lists.finish()))
    }
}
