//! Text, or a pair of texts → token ids.

use std::borrow::Cow;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int32Array, ListArray};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::datatypes::{DataType, Field, FieldRef};
use tokenizers::{
    EncodeInput, Encoding, PostProcessor, Tokenizer, TruncationDirection, TruncationParams,
};

use super::{Transform, Transformed};
use crate::error::RuntimeError;
use crate::model::{ModelDeclaration, Package, Side, Template, TransformKind, type_name};

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
    /// Which text it is of: 0 for the first, 1 for the second of a pair, -1 for none.
    Text,
    /// Which of its text's words it is a part of, from 0; -1 for none.
    Word,
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
        let all = [Self::Id, Self::Type, Self::Start, Self::End, Self::Text, Self::Word];
        all.into_iter().filter(is_needed).collect()
    }

    /// The argument of the program that gets the column.
    pub(crate) fn argument(self) -> &'static str {
        match self {
            Self::Id => "input_ids",
            Self::Type => "token_type_ids",
            Self::Start => "token_starts",
            Self::End => "token_ends",
            Self::Text => "token_texts",
            Self::Word => "token_words",
        }
    }

    /// What fills a row up to the longest of its batch.
    pub(crate) fn padding(self, pad_id: i64) -> i64 {
        match self {
            Self::Id => pad_id,
            Self::Type => 0,
            Self::Start | Self::End | Self::Text | Self::Word => -1,
        }
    }

    fn field(self) -> FieldRef {
        let name = match self {
            Self::Id => "__forebay_tokens",
            Self::Type => "__forebay_token_types",
            Self::Start => "__forebay_token_starts",
            Self::End => "__forebay_token_ends",
            Self::Text => "__forebay_token_texts",
            Self::Word => "__forebay_token_words",
        };
        Arc::new(Field::new(name, DataType::List(item_field()), true))
    }

    fn append(self, encoding: &Encoding, values: &mut Vec<i32>) {
        let special = encoding.get_special_tokens_mask();
        // Special tokens are no part of a text.
        let in_text = |(value, special): (i32, &u32)| if *special == 0 { value } else { -1 };
        let offset = |pick: fn(&(usize, usize)) -> usize| {
            let offsets = encoding.get_offsets().iter().map(move |offsets| pick(offsets) as i32);
            offsets.zip(special).map(in_text)
        };
        match self {
            Self::Id => values.extend(encoding.get_ids().iter().map(|id| *id as i32)),
            Self::Type => values.extend(encoding.get_type_ids().iter().map(|id| *id as i32)),
            Self::Start => values.extend(offset(|(start, _)| *start)),
            Self::End => values.extend(offset(|(_, end)| *end)),
            Self::Text => {
                let texts = encoding.get_sequence_ids().into_iter();
                let texts = texts.map(|text| text.map_or(-1, |text| text as i32));
                values.extend(texts.zip(special).map(in_text));
            }
            Self::Word => {
                let words = encoding.get_word_ids().iter();
                let words = words.map(|word| word.map_or(-1, |word| word as i32));
                values.extend(words.zip(special).map(in_text));
            }
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
    /// How a pair becomes one text, if it does.
    template: Option<Template>,
    /// How many tokens the model knows, if it says so.
    vocabulary: Option<u32>,
}

impl std::fmt::Debug for Tokenize {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenize").field("model", &self.model).finish_non_exhaustive()
    }
}

impl Tokenize {
    /// Reads the tokenizer of a package. Its own padding and truncation do not count.
    pub(super) fn load(model: &ModelDeclaration, package: &Package) -> Result<Self, RuntimeError> {
        let TransformKind::Tokenize {
            tokenizer: file,
            max_tokens,
            truncation: side,
            vocabulary,
            template,
            ..
        } = &model.transform
        else {
            return Err(load_error(model, "", "it has no tokenizer"));
        };
        let (max_tokens, side, vocabulary) = (*max_tokens, *side, *vocabulary);
        let template =
            template.as_deref().map(|text| Template::parse(text, &model.signature.inputs));
        let template = template.transpose().map_err(|problem| load_error(model, file, &problem))?;
        let mut tokenizer = Tokenizer::from_file(package.file(file))
            .map_err(|e| load_error(model, file, &e.to_string()))?;
        let inputs = &model.signature.inputs;
        let is_pair = inputs.len() > 1 && template.is_none();
        let special = tokenizer.get_post_processor().map_or(0, |p| p.added_tokens(is_pair));
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
            template,
            vocabulary,
        })
    }

    fn encode(&self, input: EncodeInput<'_>) -> Result<Encoding, RuntimeError> {
        // Where tokens are is found only if it is asked for.
        let is_place =
            |column: &TokenColumn| !matches!(column, TokenColumn::Id | TokenColumn::Type);
        let encoding = if self.columns.iter().any(is_place) {
            self.tokenizer.encode_char_offsets(input, true)
        } else {
            self.tokenizer.encode_fast(input, true)
        };
        let encoding =
            encoding.map_err(|e| self.problem(0, format!("the tokenizer failed: {e}")))?;
        let ids = encoding.get_ids();
        if ids.is_empty() {
            // What a program makes of padding alone would depend on the rows beside it.
            return Err(self.problem(0, "the text has no tokens; leave such rows out".to_owned()));
        }
        let known = self.vocabulary.unwrap_or(u32::MAX);
        let Some(at) = ids.iter().position(|id| *id >= known) else { return Ok(encoding) };
        // An encoding that was made fast has no texts of tokens.
        let id = ids[at];
        let token = self.tokenizer.id_to_token(id).unwrap_or_default();
        Err(self.problem(
            encoding.token_to_sequence(at).unwrap_or(0),
            format!(
                "the text has the token '{token}' ({id}), and the model knows {known} tokens; take the \
                 tokenizer that it was trained with"
            ),
        ))
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
                    let (first, second) = (self.prompted(first?), second?);
                    Some(match &self.template {
                        Some(template) => template.join(&first, second).into(),
                        None => (first, second).into(),
                    })
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

    fn apply(&self, inputs: &[ArrayRef]) -> Result<Transformed, RuntimeError> {
        let rows = self.rows(inputs)?;
        let mut truncated = 0;
        let mut lengths = Vec::with_capacity(rows.len());
        let mut values = vec![Vec::with_capacity(rows.len() * 32); self.columns.len()];
        for row in rows {
            let encoding = row.map(|input| self.encode(input)).transpose()?;
            lengths.push(encoding.as_ref().map_or(0, Encoding::len));
            let Some(encoding) = encoding else { continue };
            truncated += usize::from(!encoding.get_overflowing().is_empty());
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
        Ok(Transformed { columns: values.into_iter().map(column).collect(), truncated })
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
        let prepared = transform.apply(&[Arc::new(column)]).unwrap().columns;
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
        let prepared = transform.apply(&[Arc::new(text)]).unwrap().columns;
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
        let prepared = transform.apply(&[Arc::new(first), Arc::new(second)]).unwrap().columns;
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
        let single = load(TEXT).apply(&[texts("1 2")]).unwrap().columns;
        assert_eq!(lists(&single[0]), [Some(vec![1, 18, 19, 11, 12, 2]), None]);
        let both =
            load(&pair("\"attention_mask\"")).apply(&[texts("1"), texts("2")]).unwrap().columns;
        assert_eq!(lists(&both[0]), [Some(vec![1, 18, 19, 11, 2, 12, 2]), None]);
    }

    #[test]
    fn offsets_count_characters_and_leave_special_tokens_out() {
        let arguments = "\"token_starts\", \"token_ends\"";
        let description = TEXT.replace("\"attention_mask\"", arguments);
        let transform = try_load(&description, TOKENIZER).unwrap();
        let text = StringArray::from(vec!["ä 12  3"]);
        let prepared = transform.apply(&[Arc::new(text)]).unwrap().columns;
        assert_eq!(lists(&prepared[0]), [Some(vec![1, 3, 3, 13, 2])]);
        assert_eq!(lists(&prepared[1]), [Some(vec![-1, 0, 2, 6, -1])]);
        assert_eq!(lists(&prepared[2]), [Some(vec![-1, 1, 4, 7, -1])]);
    }

    #[test]
    fn of_two_texts_each_token_says_which_it_is_of_and_in_which_word() {
        let arguments = "\"token_texts\", \"token_words\", \"token_starts\"";
        let transform = try_load(&pair(arguments), TOKENIZER).unwrap();
        let (first, second) = (StringArray::from(vec!["7 1"]), StringArray::from(vec!["ä 12"]));
        let prepared = transform.apply(&[Arc::new(first), Arc::new(second)]).unwrap().columns;
        let names = transform.output_fields();
        let of = |name: &str| {
            let at = names.iter().position(|field| field.name() == name).unwrap();
            lists(&prepared[at]).remove(0).unwrap()
        };
        assert_eq!(of("__forebay_tokens"), [1, 17, 11, 2, 3, 3, 2]);
        assert_eq!(of("__forebay_token_texts"), [-1, 0, 0, -1, 1, 1, -1]);
        assert_eq!(of("__forebay_token_words"), [-1, 0, 1, -1, 0, 1, -1]);
        assert_eq!(of("__forebay_token_starts"), [-1, 0, 2, -1, 0, 2, -1]);
    }

    #[test]
    fn a_template_makes_one_text_of_two() {
        let description = pair("\"attention_mask\"")
            .replace("pad_id = 0", "pad_id = 0\ntemplate = \"9 {text} 8 {other} 7\"");
        let transform = try_load(&description, TOKENIZER).unwrap();
        let texts = |text: Option<&str>| -> ArrayRef { Arc::new(StringArray::from(vec![text])) };
        let prepared = transform.apply(&[texts(Some("1")), texts(Some("2"))]).unwrap().columns;
        assert_eq!(lists(&prepared[0]), [Some(vec![1, 19, 11, 18, 12, 17, 2])]);
        let prepared = transform.apply(&[texts(Some("1")), texts(None)]).unwrap().columns;
        assert_eq!(lists(&prepared[0]), [None]);
    }

    #[test]
    fn texts_that_are_cut_are_counted() {
        let count = |transform: &Tokenize, columns: &[ArrayRef]| {
            transform.apply(columns).unwrap().truncated
        };
        let texts =
            |texts: &[Option<&str>]| -> ArrayRef { Arc::new(StringArray::from(texts.to_vec())) };
        let single = try_load(TEXT, TOKENIZER).unwrap();
        // Six words and two special tokens are as many as it takes.
        let rows =
            [Some("1 2 3 4 5 6"), Some("1 2 3 4 5 6 7"), None, Some("1"), Some(&"1 ".repeat(99))];
        assert_eq!(count(&single, &[texts(&rows)]), 2);
        let left = TEXT.replace("pad_id = 0", "pad_id = 0\ntruncation = \"left\"");
        assert_eq!(count(&try_load(&left, TOKENIZER).unwrap(), &[texts(&rows)]), 2);
        let both = try_load(&pair("\"attention_mask\""), TOKENIZER).unwrap();
        let other = texts(&[Some("1"), Some("1"), Some("1"), Some("1 2 3 4"), Some("1")]);
        assert_eq!(count(&both, &[texts(&rows), other]), 3);
    }

    #[test]
    fn tokens_that_the_model_has_no_embedding_for_are_named() {
        let description = TEXT.replace("pad_id = 0", "pad_id = 0\nvocabulary = 19");
        let transform = try_load(&description, TOKENIZER).unwrap();
        let texts = |text: &str| -> ArrayRef { Arc::new(StringArray::from(vec![text])) };
        assert!(transform.apply(&[texts("8 1")]).is_ok());
        let error = transform.apply(&[texts("8 9 1")]).unwrap_err().to_string();
        let expected = "model 'm': input 'text': the text has the token '9' (19), and the model knows 19 \
             tokens; take the tokenizer that it was trained with";
        assert_eq!(error, expected);
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
