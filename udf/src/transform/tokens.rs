//! Tokens as columns: what is prepared of each.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef};
use tokenizers::Encoding;

use crate::model::{ModelDeclaration, TransformKind};

/// What is prepared of each token: one column of lists each, all of the same lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenColumn {
    /// The id in the vocabulary. Always there, and first: the engine forms batches by its lengths.
    Id,
    /// 0 in the first text of a pair, 1 in the second. Of single texts all are 0, so it is left out.
    Type,
    /// Where the token begins in the text, in characters; -1 for one that is no part of the text.
    Start,
    /// Where it ends, behind its last character; -1 likewise.
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

    pub(super) fn field(self) -> FieldRef {
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

    pub(super) fn append(self, encoding: &Encoding, values: &mut Vec<i32>) {
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

pub(super) fn item_field() -> FieldRef {
    Arc::new(Field::new_list_field(DataType::Int32, false))
}
