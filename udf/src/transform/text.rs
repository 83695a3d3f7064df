//! Text → token ids.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int32Array, ListArray};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field, FieldRef};
use tokenizers::{PostProcessor, Tokenizer, TruncationParams};

use super::Transform;
use crate::error::RuntimeError;
use crate::model::{ModelDeclaration, Package, TransformKind, type_name};

/// Name of the prepared column: one list of token ids per row.
const TOKENS: &str = "__forebay_tokens";

pub(super) fn output_fields() -> Vec<FieldRef> {
    vec![Arc::new(Field::new(TOKENS, DataType::List(item_field()), true))]
}

fn item_field() -> FieldRef {
    Arc::new(Field::new_list_field(DataType::Int32, false))
}

/// Tokenizes one text column.
///
/// Each call works on its own thread only: the producers in front of an exchange are parallel
/// already.
pub(super) struct Tokenize {
    model: String,
    input: String,
    tokenizer: Tokenizer,
}

impl std::fmt::Debug for Tokenize {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenize").field("model", &self.model).finish_non_exhaustive()
    }
}

impl Tokenize {
    /// Reads the tokenizer of a package. Its own padding and truncation do not count.
    pub(super) fn load(model: &ModelDeclaration, package: &Package) -> Result<Self, RuntimeError> {
        let (file, max_tokens) = match &model.transform {
            TransformKind::Tokenize { tokenizer, max_tokens, .. } => (tokenizer, *max_tokens),
            TransformKind::Tensor => return Err(load_error(model, "", "it has no tokenizer")),
        };
        let mut tokenizer = Tokenizer::from_file(package.file(file))
            .map_err(|e| load_error(model, file, &e.to_string()))?;
        let special = tokenizer.get_post_processor().map_or(0, |p| p.added_tokens(false));
        if special >= max_tokens as usize {
            let problem =
                format!("it adds {special} special tokens, but max_tokens is {max_tokens}");
            return Err(load_error(model, file, &problem));
        }
        let truncation =
            TruncationParams { max_length: max_tokens as usize, ..TruncationParams::default() };
        tokenizer.with_padding(None);
        tokenizer
            .with_truncation(Some(truncation))
            .map_err(|e| load_error(model, file, &e.to_string()))?;
        let input = model.signature.inputs.first().map_or("", |field| field.name());
        Ok(Self { model: model.name.clone(), input: input.to_owned(), tokenizer })
    }

    fn tokenize<'a>(
        &self,
        texts: impl ExactSizeIterator<Item = Option<&'a str>>,
        column: &dyn Array,
    ) -> Result<ArrayRef, RuntimeError> {
        let mut ids: Vec<i32> = Vec::with_capacity(texts.len() * 32);
        let mut lengths = Vec::with_capacity(texts.len());
        for text in texts {
            let before = ids.len();
            if let Some(text) = text {
                let encoding = self
                    .tokenizer
                    .encode_fast(text, true)
                    .map_err(|e| self.problem(format!("the tokenizer failed: {e}")))?;
                ids.extend(encoding.get_ids().iter().map(|id| *id as i32));
            }
            lengths.push(ids.len() - before);
        }
        if i32::try_from(ids.len()).is_err() {
            return Err(self.problem("more than 2147483647 tokens in one batch".to_owned()));
        }
        let offsets = OffsetBuffer::from_lengths(lengths);
        let nulls = column.logical_nulls();
        Ok(Arc::new(ListArray::new(item_field(), offsets, Arc::new(Int32Array::from(ids)), nulls)))
    }

    fn problem(&self, problem: String) -> RuntimeError {
        RuntimeError::Transform { model: self.model.clone(), input: self.input.clone(), problem }
    }
}

fn load_error(model: &ModelDeclaration, file: &str, problem: &str) -> RuntimeError {
    RuntimeError::Load {
        model: model.name.clone(),
        file: file.to_owned(),
        problem: problem.to_owned(),
    }
}

impl Transform for Tokenize {
    fn output_fields(&self) -> Vec<FieldRef> {
        output_fields()
    }

    fn apply(&self, inputs: &[ArrayRef]) -> Result<Vec<ArrayRef>, RuntimeError> {
        let [column] = inputs else {
            return Err(self.problem(format!("found {} columns, expected one", inputs.len())));
        };
        let tokens = match column.data_type() {
            DataType::Utf8 => self.tokenize(column.as_string::<i32>().iter(), column)?,
            DataType::LargeUtf8 => self.tokenize(column.as_string::<i64>().iter(), column)?,
            DataType::Utf8View => self.tokenize(column.as_string_view().iter(), column)?,
            other => {
                let found = type_name(other);
                return Err(self.problem(format!("found {found}, expected STRING")));
            }
        };
        Ok(vec![tokens])
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{Int64Array, LargeStringArray, StringArray, StringViewArray};
    use arrow::datatypes::Int32Type;

    use super::*;
    use crate::fixture::{Folder, TEXT, open};

    /// Words 0 to 9 are their own ids plus 10; padded and truncated in ways that must not count.
    const TOKENIZER: &str = r#"{
        "version": "1.0",
        "truncation": {"direction": "Left", "max_length": 3, "strategy": "LongestFirst", "stride": 0},
        "padding": {"strategy": {"Fixed": 20}, "direction": "Right", "pad_to_multiple_of": null,
            "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"},
        "added_tokens": [],
        "normalizer": null,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
                {"SpecialToken": {"id": "[SEP]", "type_id": 0}}],
            "pair": [],
            "special_tokens": {
                "[CLS]": {"id": "[CLS]", "ids": [1], "tokens": ["[CLS]"]},
                "[SEP]": {"id": "[SEP]", "ids": [2], "tokens": ["[SEP]"]}}
        },
        "decoder": null,
        "model": {"type": "WordLevel", "unk_token": "[UNK]", "vocab": {"[PAD]": 0, "[CLS]": 1,
            "[SEP]": 2, "[UNK]": 3, "0": 10, "1": 11, "2": 12, "3": 13, "4": 14, "5": 15, "6": 16,
            "7": 17, "8": 18, "9": 19}}
    }"#;

    fn try_load(description: &str, tokenizer: &str) -> Result<Tokenize, RuntimeError> {
        let files: [(&str, &[u8]); 2] =
            [("model.pt", b""), ("tokenizer.json", tokenizer.as_bytes())];
        let folder = Folder::new(description, &files);
        let (model, package) = open(folder.path());
        Tokenize::load(&model, &package)
    }

    fn tokens(column: impl Array + 'static) -> Vec<Option<Vec<i32>>> {
        let transform = try_load(TEXT, TOKENIZER).unwrap();
        let prepared = transform.apply(&[Arc::new(column)]).unwrap();
        assert_eq!(prepared[0].data_type(), transform.output_fields()[0].data_type());
        let rows = prepared[0].as_list::<i32>().iter();
        rows.map(|row| Some(row?.as_primitive::<Int32Type>().values().to_vec())).collect()
    }

    #[test]
    fn every_layout_of_text_gives_the_same_tokens() {
        let texts = vec![Some("1 2"), None, Some(""), Some("9 x")];
        let expected = [Some(vec![1, 11, 12, 2]), None, Some(vec![1, 2]), Some(vec![1, 19, 3, 2])];
        assert_eq!(tokens(StringArray::from(texts.clone())), expected);
        assert_eq!(tokens(LargeStringArray::from(texts.clone())), expected);
        assert_eq!(tokens(StringViewArray::from(texts)), expected);
    }

    #[test]
    fn sliced_columns_give_the_tokens_of_their_own_rows() {
        let column = StringArray::from(vec![Some("1"), None, Some("2"), Some("3")]).slice(1, 2);
        assert_eq!(tokens(column), [None, Some(vec![1, 12, 2])]);
    }

    #[test]
    fn long_texts_are_cut_and_keep_their_special_tokens() {
        let long = "1 2 3 4 5 6 7 8 9 ".repeat(20_000);
        let expected = vec![1, 11, 12, 13, 14, 15, 16, 2];
        assert_eq!(tokens(StringArray::from(vec![long.as_str()])), [Some(expected)]);
    }

    #[test]
    fn empty_columns_give_empty_columns() {
        assert!(tokens(StringArray::from(Vec::<&str>::new())).is_empty());
    }

    #[test]
    fn other_types_are_refused() {
        let transform = try_load(TEXT, TOKENIZER).unwrap();
        let error = transform.apply(&[Arc::new(Int64Array::from(vec![1]))]).unwrap_err();
        assert_eq!(error.to_string(), "model 'm': input 'text': found BIGINT, expected STRING");
    }

    #[test]
    fn broken_tokenizers_are_named() {
        for (description, tokenizer, expected) in [
            (TEXT.to_owned(), "{", "tokenizer.json cannot be loaded"),
            (TEXT.replace("max_tokens = 8", "max_tokens = 2"), TOKENIZER, "2 special tokens"),
        ] {
            let message = try_load(&description, tokenizer).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        }
    }
}
