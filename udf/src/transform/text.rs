//! Text, or a pair of texts → token ids.

use std::borrow::Cow;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int32Array, ListArray};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::datatypes::{DataType, Field, FieldRef};
use tokenizers::{
    EncodeInput, Encoding, PostProcessor, Tokenizer, TruncationDirection, TruncationParams,
};

use super::Transform;
use crate::error::RuntimeError;
use crate::model::{ModelDeclaration, Package, Side, TransformKind, type_name};

/// What is prepared of each token: one column of lists each, all of the same lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenColumn {
    /// The id in the vocabulary. Always there, and first: the engine forms batches by its lengths.
    Id,
    /// 0 in the first text of a pair, 1 in the second. Of single texts all are 0, so it is left out.
    Type,
    /// Where the token begins in the text, in characters; -1 for one that is no part of the text.
    Start,
    /// Where it ends.
    End,
}

impl TokenColumn {
    /// The columns of a model, in the order in which they are prepared.
    pub(crate) fn of(model: &ModelDeclaration) -> Vec<Self> {
        let TransformKind::Tokenize { arguments, .. } = &model.transform else { return vec![] };
        let is_pair = model.signature.inputs.len() > 1;
        let is_needed = |column: &Self| match column {
            Self::Id => true,
            Self::Type if !is_pair => false,
            other => arguments.iter().any(|argument| argument == other.argument()),
        };
        [Self::Id, Self::Type, Self::Start, Self::End].into_iter().filter(is_needed).collect()
    }

    /// The argument of the program that gets the column.
    pub(crate) fn argument(self) -> &'static str {
        match self {
            Self::Id => "input_ids",
            Self::Type => "token_type_ids",
            Self::Start => "token_starts",
            Self::End => "token_ends",
        }
    }

    /// What fills a row up to the longest of its batch.
    pub(crate) fn padding(self, pad_id: i64) -> i64 {
        match self {
            Self::Id => pad_id,
            Self::Type => 0,
            Self::Start | Self::End => -1,
        }
    }

    fn field(self) -> FieldRef {
        let name = match self {
            Self::Id => "__forebay_tokens",
            Self::Type => "__forebay_token_types",
            Self::Start => "__forebay_token_starts",
            Self::End => "__forebay_token_ends",
        };
        Arc::new(Field::new(name, DataType::List(item_field()), true))
    }

    fn append(self, encoding: &Encoding, values: &mut Vec<i32>) {
        let offset = |pick: fn(&(usize, usize)) -> usize| {
            let offsets = encoding.get_offsets().iter();
            let in_text = move |(offsets, special): (&(usize, usize), &u32)| match special {
                0 => pick(offsets) as i32,
                _ => -1,
            };
            offsets.zip(encoding.get_special_tokens_mask()).map(in_text)
        };
        match self {
            Self::Id => values.extend(encoding.get_ids().iter().map(|id| *id as i32)),
            Self::Type => values.extend(encoding.get_type_ids().iter().map(|id| *id as i32)),
            Self::Start => values.extend(offset(|(start, _)| *start)),
            Self::End => values.extend(offset(|(_, end)| *end)),
        }
    }
}

pub(super) fn output_fields(model: &ModelDeclaration) -> Vec<FieldRef> {
    TokenColumn::of(model).into_iter().map(TokenColumn::field).collect()
}

fn item_field() -> FieldRef {
    Arc::new(Field::new_list_field(DataType::Int32, false))
}

/// Tokenizes one text column, or a pair of them as one sequence.
///
/// Each call works on its own thread only: the producers in front of an exchange are parallel
/// already.
pub(super) struct Tokenize {
    model: String,
    inputs: Vec<String>,
    columns: Vec<TokenColumn>,
    /// In front of each text, of a pair the first.
    prompt: String,
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
        let (file, max_tokens, side) = match &model.transform {
            TransformKind::Tokenize { tokenizer, max_tokens, truncation, .. } => {
                (tokenizer, *max_tokens, *truncation)
            }
            TransformKind::Tensor | TransformKind::Image { .. } => {
                return Err(load_error(model, "", "it has no tokenizer"));
            }
        };
        let mut tokenizer = Tokenizer::from_file(package.file(file))
            .map_err(|e| load_error(model, file, &e.to_string()))?;
        let inputs = &model.signature.inputs;
        let special =
            tokenizer.get_post_processor().map_or(0, |p| p.added_tokens(inputs.len() > 1));
        if special >= max_tokens as usize {
            let problem =
                format!("it adds {special} special tokens, but max_tokens is {max_tokens}");
            return Err(load_error(model, file, &problem));
        }
        // Of a pair, the longer text is cut first.
        let truncation = TruncationParams {
            max_length: max_tokens as usize,
            direction: match side {
                Side::Left => TruncationDirection::Left,
                Side::Right => TruncationDirection::Right,
            },
            ..TruncationParams::default()
        };
        tokenizer.with_padding(None);
        tokenizer
            .with_truncation(Some(truncation))
            .map_err(|e| load_error(model, file, &e.to_string()))?;
        Ok(Self {
            model: model.name.clone(),
            inputs: inputs.iter().map(|field| field.name().clone()).collect(),
            columns: TokenColumn::of(model),
            prompt: model.prompt_text().to_owned(),
            tokenizer,
        })
    }

    fn encode(&self, input: EncodeInput<'_>) -> Result<Encoding, RuntimeError> {
        let wants_offsets =
            self.columns.contains(&TokenColumn::Start) || self.columns.contains(&TokenColumn::End);
        let encoding = if wants_offsets {
            self.tokenizer.encode_char_offsets(input, true)
        } else {
            self.tokenizer.encode_fast(input, true)
        };
        let encoding =
            encoding.map_err(|e| self.problem(0, format!("the tokenizer failed: {e}")))?;
        match encoding.is_empty() {
            // What a program makes of padding alone would depend on the rows beside it.
            true => Err(self.problem(0, "the text has no tokens; leave such rows out".to_owned())),
            false => Ok(encoding),
        }
    }

    fn texts<'a>(
        &self,
        input: usize,
        column: &'a ArrayRef,
    ) -> Result<Vec<Option<&'a str>>, RuntimeError> {
        Ok(match column.data_type() {
            DataType::Utf8 => column.as_string::<i32>().iter().collect(),
            DataType::LargeUtf8 => column.as_string::<i64>().iter().collect(),
            DataType::Utf8View => column.as_string_view().iter().collect(),
            other => {
                let found = type_name(other);
                return Err(self.problem(input, format!("found {found}, expected STRING")));
            }
        })
    }

    /// Of each row, what becomes one sequence: nothing where a text is NULL.
    fn rows<'a>(
        &self,
        inputs: &'a [ArrayRef],
    ) -> Result<Vec<Option<EncodeInput<'a>>>, RuntimeError> {
        match inputs {
            [text] if self.inputs.len() == 1 => {
                let texts = self.texts(0, text)?.into_iter();
                Ok(texts.map(|text| Some(self.prompted(text?).into())).collect())
            }
            [first, second] if self.inputs.len() == 2 => {
                let pairs = self.texts(0, first)?.into_iter().zip(self.texts(1, second)?);
                let pair = |(first, second): (Option<&'a str>, Option<&'a str>)| {
                    Some((self.prompted(first?), second?).into())
                };
                Ok(pairs.map(pair).collect())
            }
            _ => {
                let (found, expected) = (inputs.len(), self.inputs.len());
                Err(self.problem(0, format!("found {found} columns, expected {expected}")))
            }
        }
    }

    fn prompted<'a>(&self, text: &'a str) -> Cow<'a, str> {
        match self.prompt.is_empty() {
            true => Cow::Borrowed(text),
            false => Cow::Owned(format!("{}{text}", self.prompt)),
        }
    }

    fn problem(&self, input: usize, problem: String) -> RuntimeError {
        let input = self.inputs.get(input).cloned().unwrap_or_default();
        RuntimeError::Transform { model: self.model.clone(), input, problem }
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
        self.columns.iter().copied().map(TokenColumn::field).collect()
    }

    fn apply(&self, inputs: &[ArrayRef]) -> Result<Vec<ArrayRef>, RuntimeError> {
        let rows = self.rows(inputs)?;
        let mut lengths = Vec::with_capacity(rows.len());
        let mut values = vec![Vec::with_capacity(rows.len() * 32); self.columns.len()];
        for row in rows {
            let encoding = row.map(|input| self.encode(input)).transpose()?;
            lengths.push(encoding.as_ref().map_or(0, Encoding::len));
            let Some(encoding) = encoding else { continue };
            for (column, values) in self.columns.iter().zip(&mut values) {
                column.append(&encoding, values);
            }
        }
        if i32::try_from(lengths.iter().sum::<usize>()).is_err() {
            return Err(self.problem(0, "more than 2147483647 tokens in one batch".to_owned()));
        }
        let offsets = OffsetBuffer::<i32>::from_lengths(lengths);
        let nulls = inputs.iter().fold(None, |nulls: Option<NullBuffer>, column| {
            NullBuffer::union(nulls.as_ref(), column.logical_nulls().as_ref())
        });
        let column = |values: Vec<i32>| {
            let values = Arc::new(Int32Array::from(values));
            Arc::new(ListArray::new(item_field(), offsets.clone(), values, nulls.clone())) as _
        };
        Ok(values.into_iter().map(column).collect())
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{Int64Array, LargeStringArray, StringArray, StringViewArray};
    use arrow::datatypes::Int32Type;

    use super::*;
    use crate::fixture::{Folder, TEXT, open};
    use crate::model::ModelOptions;

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
            "pair": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
                {"SpecialToken": {"id": "[SEP]", "type_id": 0}},
                {"Sequence": {"id": "B", "type_id": 1}},
                {"SpecialToken": {"id": "[SEP]", "type_id": 1}}],
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
    fn texts_may_be_cut_at_their_beginning() {
        let description = TEXT.replace("pad_id = 0", "pad_id = 0\ntruncation = \"left\"");
        let transform = try_load(&description, TOKENIZER).unwrap();
        let text = StringArray::from(vec!["1 2 3 4 5 6 7 8 9"]);
        let prepared = transform.apply(&[Arc::new(text)]).unwrap();
        assert_eq!(lists(&prepared[0]), [Some(vec![1, 14, 15, 16, 17, 18, 19, 2])]);
    }

    /// `TEXT` with a second input and these arguments.
    fn pair(arguments: &str) -> String {
        let second = "[[input]]\nname = \"other\"\ntype = \"STRING\"\n\n[[output]]";
        TEXT.replace("[[output]]", second).replace("\"attention_mask\"", arguments)
    }

    fn lists(column: &ArrayRef) -> Vec<Option<Vec<i32>>> {
        let rows = column.as_list::<i32>().iter();
        rows.map(|row| Some(row?.as_primitive::<Int32Type>().values().to_vec())).collect()
    }

    #[test]
    fn pairs_are_one_sequence_and_the_longer_text_is_cut_first() {
        let transform = try_load(&pair("\"token_type_ids\""), TOKENIZER).unwrap();
        let names: Vec<String> =
            transform.output_fields().iter().map(|field| field.name().clone()).collect();
        assert_eq!(names, ["__forebay_tokens", "__forebay_token_types"]);
        let first = StringArray::from(vec![Some("1"), None, Some("2"), Some("1 2 3 4 5 6 7")]);
        let second = StringArray::from(vec![Some("2 3"), Some("3"), None, Some("8 9")]);
        let prepared = transform.apply(&[Arc::new(first), Arc::new(second)]).unwrap();
        let ids = [Some(vec![1, 11, 2, 12, 13, 2]), None, None];
        assert_eq!(lists(&prepared[0])[..3], ids);
        assert_eq!(lists(&prepared[0])[3], Some(vec![1, 11, 12, 13, 2, 18, 19, 2]));
        let types = [Some(vec![0, 0, 0, 1, 1, 1]), None, None, Some(vec![0, 0, 0, 0, 0, 1, 1, 1])];
        assert_eq!(lists(&prepared[1]), types);

        // A model that takes no types has no column of them.
        let transform = try_load(&pair("\"attention_mask\""), TOKENIZER).unwrap();
        assert_eq!(transform.output_fields().len(), 1);
    }

    #[test]
    fn texts_without_tokens_are_refused() {
        let mut tokenizer: serde_json::Value = serde_json::from_str(TOKENIZER).unwrap();
        tokenizer["post_processor"] = serde_json::Value::Null;
        let transform = try_load(TEXT, &tokenizer.to_string()).unwrap();
        let texts = |texts: &[&str]| -> ArrayRef { Arc::new(StringArray::from(texts.to_vec())) };
        assert!(transform.apply(&[texts(&["1 2"])]).is_ok());
        let error = transform.apply(&[texts(&["1 2", ""])]).unwrap_err().to_string();
        assert_eq!(error, "model 'm': input 'text': the text has no tokens; leave such rows out");
    }

    #[test]
    fn a_prompt_comes_before_each_text_and_of_a_pair_before_the_first() {
        let prompts = "prompts = { digits = \"8 9 \" }";
        let load = |description: &str| {
            let text = description.replacen("version =", &format!("{prompts}\nversion ="), 1);
            let files: [(&str, &[u8]); 2] =
                [("model.pt", b""), ("tokenizer.json", TOKENIZER.as_bytes())];
            let folder = Folder::new(&text, &files);
            let (model, package) = open(folder.path());
            let options = ModelOptions { prompt: Some("digits".to_owned()), ..Default::default() };
            Tokenize::load(&model.with_options(&options).unwrap(), &package).unwrap()
        };
        let texts =
            |text: &str| -> ArrayRef { Arc::new(StringArray::from(vec![Some(text), None])) };
        let single = load(TEXT).apply(&[texts("1 2")]).unwrap();
        assert_eq!(lists(&single[0]), [Some(vec![1, 18, 19, 11, 12, 2]), None]);
        let both = load(&pair("\"attention_mask\"")).apply(&[texts("1"), texts("2")]).unwrap();
        assert_eq!(lists(&both[0]), [Some(vec![1, 18, 19, 11, 2, 12, 2]), None]);
    }

    #[test]
    fn offsets_count_characters_and_leave_special_tokens_out() {
        let arguments = "\"token_starts\", \"token_ends\"";
        let description = TEXT.replace("\"attention_mask\"", arguments);
        let transform = try_load(&description, TOKENIZER).unwrap();
        let text = StringArray::from(vec!["ä 12  3"]);
        let prepared = transform.apply(&[Arc::new(text)]).unwrap();
        assert_eq!(lists(&prepared[0]), [Some(vec![1, 3, 3, 13, 2])]);
        assert_eq!(lists(&prepared[1]), [Some(vec![-1, 0, 2, 6, -1])]);
        assert_eq!(lists(&prepared[2]), [Some(vec![-1, 1, 4, 7, -1])]);
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
