//! Text, or a pair of texts → token ids.

use std::borrow::Cow;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int32Array, ListArray};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::datatypes::{DataType, FieldRef};
use tokenizers::{
    EncodeInput, Encoding, PostProcessor, Tokenizer, TruncationDirection, TruncationParams,
};

use super::interface::{Transform, Transformed};
use super::tokens::{TokenColumn, item_field};
use crate::error::RuntimeError;
use crate::model::{ModelDeclaration, Package, Side, Template, TransformKind, type_name};

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
        if self.prompt.is_empty() {
            Cow::Borrowed(text)
        } else {
            Cow::Owned(format!("{}{text}", self.prompt))
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
mod tests;
