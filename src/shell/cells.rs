//! Values as the cells of a table: short enough to be looked at, or whole.

use std::fmt::{self, Write};
use std::ops::Range;

use arrow::array::{Array, ArrayRef, AsArray, FixedSizeBinaryArray};
use arrow::datatypes::{DataType, Field};
use arrow::error::Result;
use arrow::util::display::{
    ArrayFormatter, ArrayFormatterFactory, DisplayIndex, FormatOptions, FormatResult,
    ValueFormatter,
};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::terminal::escape;

/// Longer lists show their first elements and how many there are.
const ELEMENTS_MAX: usize = 16;
const ELEMENTS_SHOWN: usize = 4;
/// Longer binaries show their first bytes and how many there are.
const BYTES_MAX: usize = 32;
const BYTES_SHOWN: usize = 8;

/// The places that a text takes on a terminal.
pub(super) fn width(text: &str) -> usize {
    text.width()
}

/// The text on one line, which takes no more than `places`; what is left out is `…`.
pub(super) fn cut(text: &str, places: usize) -> String {
    let mut cell = Cell::new(places);
    // A cell that is full takes no more, and that is all that can go wrong.
    let _ = cell.write_str(text);
    cell.finish()
}

/// The same of a value, of which no more is computed than is shown.
pub(super) fn short(value: &ValueFormatter<'_>, places: usize) -> String {
    let mut cell = Cell::new(places);
    if let Err(error) = value.write(&mut cell)
        && !cell.is_full
    {
        let _ = write!(cell, "ERROR: {error}");
    }
    cell.finish()
}

/// The whole value, whose lines stay lines.
pub(super) fn whole(value: &ValueFormatter<'_>) -> String {
    escape::lines(&value.to_string())
}

/// A line that takes so many places at most.
struct Cell {
    text: String,
    places: usize,
    taken: usize,
    is_full: bool,
}

impl Cell {
    fn new(places: usize) -> Self {
        Self { text: String::new(), places, taken: 0, is_full: false }
    }

    fn finish(mut self) -> String {
        if self.is_full {
            while width(&self.text) >= self.places.max(1) {
                self.text.pop();
            }
            self.text.push('…');
        }
        self.text
    }
}

impl Write for Cell {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            if self.is_full {
                return Err(fmt::Error);
            }
            let before = self.text.len();
            escape::push(&mut self.text, c);
            self.taken += self.text[before..].chars().filter_map(|c| c.width()).sum::<usize>();
            self.is_full = self.taken > self.places;
        }
        Ok(())
    }
}

/// Shortens long lists, vectors and binaries, also within structs: `[0.1, 0.2, …] (384)`.
#[derive(Debug)]
pub(super) struct Shorten;

impl ArrayFormatterFactory for Shorten {
    fn create_array_formatter<'a>(
        &self,
        array: &'a dyn Array,
        options: &FormatOptions<'a>,
        _: Option<&'a Field>,
    ) -> Result<Option<ArrayFormatter<'a>>> {
        let null = options.null();
        let list = |values: &'a ArrayRef, range: RangeOf<'a>| {
            let values = values.as_ref();
            let values = match self.create_array_formatter(values, options, None)? {
                Some(formatter) => formatter,
                None => ArrayFormatter::try_new(values, options)?,
            };
            let list = ShortList { array, values, range, null };
            Ok(Some(ArrayFormatter::new(Box::new(list), true)))
        };
        let bytes: BytesOf<'a> = match array.data_type() {
            DataType::List(_) => {
                let lists = array.as_list::<i32>();
                let offsets = lists.value_offsets();
                let range = move |row: usize| offsets[row] as usize..offsets[row + 1] as usize;
                return list(lists.values(), Box::new(range));
            }
            DataType::LargeList(_) => {
                let lists = array.as_list::<i64>();
                let offsets = lists.value_offsets();
                let range = move |row: usize| offsets[row] as usize..offsets[row + 1] as usize;
                return list(lists.values(), Box::new(range));
            }
            DataType::FixedSizeList(_, length) => {
                let lists = array.as_fixed_size_list();
                let length = *length as usize;
                return list(lists.values(), Box::new(move |row| row * length..(row + 1) * length));
            }
            DataType::Binary => Box::new(|row| array.as_binary::<i32>().value(row)),
            DataType::LargeBinary => Box::new(|row| array.as_binary::<i64>().value(row)),
            DataType::BinaryView => Box::new(|row| array.as_binary_view().value(row)),
            DataType::FixedSizeBinary(_) => {
                let Some(fixed) = array.as_any().downcast_ref::<FixedSizeBinaryArray>() else {
                    return Ok(None);
                };
                Box::new(|row| fixed.value(row))
            }
            _ => return Ok(None),
        };
        Ok(Some(ArrayFormatter::new(Box::new(ShortBinary { array, bytes, null }), true)))
    }
}

type RangeOf<'a> = Box<dyn Fn(usize) -> Range<usize> + 'a>;
type BytesOf<'a> = Box<dyn Fn(usize) -> &'a [u8] + 'a>;

struct ShortList<'a> {
    array: &'a dyn Array,
    values: ArrayFormatter<'a>,
    range: RangeOf<'a>,
    null: &'a str,
}

impl DisplayIndex for ShortList<'_> {
    fn write(&self, row: usize, f: &mut dyn Write) -> FormatResult {
        if self.array.is_null(row) {
            return Ok(f.write_str(self.null)?);
        }
        let range = (self.range)(row);
        let is_long = range.len() > ELEMENTS_MAX;
        f.write_str("[")?;
        let shown = if is_long { ELEMENTS_SHOWN } else { range.len() };
        for (at, element) in range.clone().take(shown).enumerate() {
            f.write_str(if at > 0 { ", " } else { "" })?;
            write!(f, "{}", self.values.value(element))?;
        }
        if is_long {
            write!(f, ", …] ({})", range.len())?;
        } else {
            f.write_str("]")?;
        }
        Ok(())
    }
}

struct ShortBinary<'a> {
    array: &'a dyn Array,
    bytes: BytesOf<'a>,
    null: &'a str,
}

impl DisplayIndex for ShortBinary<'_> {
    fn write(&self, row: usize, f: &mut dyn Write) -> FormatResult {
        if self.array.is_null(row) {
            return Ok(f.write_str(self.null)?);
        }
        let bytes = (self.bytes)(row);
        let is_long = bytes.len() > BYTES_MAX;
        for byte in &bytes[..if is_long { BYTES_SHOWN } else { bytes.len() }] {
            write!(f, "{byte:02x}")?;
        }
        if is_long {
            write!(f, "… ({} bytes)", bytes.len())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{BinaryArray, FixedSizeListArray, Float32Array, ListArray, StructArray};
    use arrow::datatypes::{Float32Type, Int32Type};

    use super::*;

    fn shown(array: &dyn Array, places: usize) -> Vec<String> {
        let options = FormatOptions::new().with_null("NULL").with_formatter_factory(Some(&Shorten));
        let formatter = Shorten.create_array_formatter(array, &options, None).unwrap();
        let formatter =
            formatter.unwrap_or_else(|| ArrayFormatter::try_new(array, &options).unwrap());
        (0..array.len()).map(|row| short(&formatter.value(row), places)).collect()
    }

    #[test]
    fn texts_take_no_more_places_than_there_are() {
        for (text, places, expected) in [
            ("abc", 3, "abc"),
            ("abcd", 3, "ab…"),
            ("日本語", 6, "日本語"),
            ("日本語", 5, "日本…"),
            ("a\nb", 4, "a\\nb"),
            ("\u{1b}[31m", 20, "\\u{1b}[31m"),
            ("", 1, ""),
        ] {
            assert_eq!(cut(text, places), expected);
        }
    }

    #[test]
    fn long_lists_and_binaries_say_how_long_they_are() {
        let vectors = FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>(
            [Some(vec![Some(0.5); 384]), None],
            384,
        );
        assert_eq!(shown(&vectors, 80), ["[0.5, 0.5, 0.5, 0.5, …] (384)", "NULL"]);
        assert_eq!(shown(&vectors.slice(1, 1), 80), ["NULL"]);
        let rows = [Some((0..16).map(Some).collect()), Some((0..17).map(Some).collect::<Vec<_>>())];
        let lists = ListArray::from_iter_primitive::<Int32Type, _, _>(rows);
        assert_eq!(shown(&lists.slice(1, 1), 80), ["[0, 1, 2, 3, …] (17)"]);
        assert!(shown(&lists, 80)[0].ends_with("14, 15]"));
        let long = [255_u8; 33];
        let binary: ArrayRef = Arc::new(BinaryArray::from(vec![&long[..], b"ab"]));
        assert_eq!(shown(&binary, 80), ["ffffffffffffffff… (33 bytes)", "6162"]);
        let height: ArrayRef = Arc::new(Float32Array::from(vec![2.0, 3.0]));
        let field = |name: &str, array: &ArrayRef| {
            Arc::new(Field::new(name, array.data_type().clone(), true))
        };
        let image = StructArray::from(vec![
            (field("data", &binary), Arc::clone(&binary)),
            (field("height", &height), Arc::clone(&height)),
        ]);
        assert_eq!(shown(&image, 80)[0], "{data: ffffffffffffffff… (33 bytes), height: 2.0}");
    }
}
