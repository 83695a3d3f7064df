//! Rows as a table, no wider than the terminal and no longer than wanted.

use std::io::Write;

use arrow::array::RecordBatch;
use arrow::datatypes::Schema;
use arrow::util::display::{ArrayFormatter, ArrayFormatterFactory, FormatOptions};
use datafusion::error::Result;

use super::cells::{self, Shorten};

/// A cell where the width of the terminal is not known, in places.
const PLACES_MAX: usize = 2000;
/// The narrowest column that is still worth looking at.
const PLACES_MIN: usize = 8;

/// How a table is printed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    /// The most rows that it shows; lines of dots stand for those behind them.
    pub(super) rows: usize,
    /// Places on a line, if there is a terminal.
    pub(super) width: Option<usize>,
    /// Whether values are whole, however long they are and however many lines they have.
    pub(super) whole: bool,
}

/// Prints a table. One without columns has nothing to print.
///
/// # Errors
/// Those of the output.
pub(super) fn print(
    out: &mut impl Write,
    schema: &Schema,
    batches: &[RecordBatch],
    look: Look,
    options: &FormatOptions<'_>,
) -> Result<()> {
    if schema.fields().is_empty() {
        return Ok(());
    }
    let table = Table { batches, look, options };
    let most = look.width.unwrap_or(PLACES_MAX);
    let header = schema.fields().iter().map(|field| cells::cut(field.name(), most));
    let header: Vec<String> = header.collect();
    let mut widths: Vec<usize> = header.iter().map(|name| cells::width(name)).collect();
    table.each_row(&vec![most; widths.len()], |row| {
        for (width, cell) in widths.iter_mut().zip(row) {
            let lines = cell.split('\n').map(cells::width);
            *width = lines.max().unwrap_or(0).max(*width);
        }
        Ok(())
    })?;
    if let (Some(width), false) = (look.width, look.whole) {
        fit(&mut widths, width);
    }
    let header: Vec<String> =
        header.iter().zip(&widths).map(|(name, width)| cells::cut(name, *width)).collect();
    border(out, &widths)?;
    line(out, &widths, &header)?;
    border(out, &widths)?;
    table.each_row(&widths, |row| line(out, &widths, row))?;
    if batches.iter().map(RecordBatch::num_rows).sum::<usize>() > look.rows {
        let places = widths.iter().sum::<usize>() + 3 * widths.len() - 2;
        for _ in 0..3 {
            writeln!(out, "| .{}|", " ".repeat(places - 1))?;
        }
    }
    Ok(border(out, &widths)?)
}

struct Table<'a> {
    batches: &'a [RecordBatch],
    look: Look,
    options: &'a FormatOptions<'a>,
}

impl Table<'_> {
    /// Each row that is shown, its cells no wider than `places`. Made anew each time, so that no
    /// more than a row is in memory as text.
    fn each_row(
        &self,
        places: &[usize],
        mut seen: impl FnMut(&[String]) -> Result<()>,
    ) -> Result<()> {
        let mut options = self.options.clone();
        if !self.look.whole {
            options = options.with_formatter_factory(Some(&Shorten));
        }
        let mut left = self.look.rows;
        for batch in self.batches {
            let formatters = batch.columns().iter().map(|column| {
                let own = (!self.look.whole)
                    .then(|| Shorten.create_array_formatter(column, &options, None));
                match own.transpose()?.flatten() {
                    Some(formatter) => Ok(formatter),
                    None => ArrayFormatter::try_new(column, &options),
                }
            });
            let formatters = formatters.collect::<Result<Vec<_>, _>>()?;
            for row in 0..batch.num_rows().min(left) {
                let cells = formatters.iter().zip(places).map(|(formatter, places)| {
                    let value = formatter.value(row);
                    if self.look.whole {
                        cells::whole(&value)
                    } else {
                        cells::short(&value, *places)
                    }
                });
                seen(&cells.collect::<Vec<_>>())?;
            }
            left -= batch.num_rows().min(left);
        }
        Ok(())
    }
}

/// Narrows the widest columns until a line fits, or they are as narrow as is worth it.
fn fit(widths: &mut [usize], line: usize) {
    let room = line.saturating_sub(3 * widths.len() + 1);
    let taken = |most: usize| widths.iter().map(|width| (*width).min(most)).sum::<usize>();
    let widest = widths.iter().copied().max().unwrap_or(0);
    let fitting = (PLACES_MIN..widest).rev().find(|most| taken(*most) <= room);
    let most = if taken(widest) <= room { widest } else { fitting.unwrap_or(PLACES_MIN) };
    widths.iter_mut().for_each(|width| *width = (*width).min(most));
}

fn border(out: &mut impl Write, widths: &[usize]) -> std::io::Result<()> {
    for width in widths {
        write!(out, "+{}", "-".repeat(width + 2))?;
    }
    writeln!(out, "+")
}

/// A row, as many lines high as its highest cell.
fn line(out: &mut impl Write, widths: &[usize], cells: &[String]) -> Result<()> {
    let cells: Vec<Vec<&str>> = cells.iter().map(|cell| cell.split('\n').collect()).collect();
    for at in 0..cells.iter().map(Vec::len).max().unwrap_or(0) {
        for (width, lines) in widths.iter().zip(&cells) {
            let text = lines.get(at).copied().unwrap_or("");
            let space = width.saturating_sub(cells::width(text));
            write!(out, "| {text}{} ", " ".repeat(space))?;
        }
        writeln!(out, "|")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_widest_columns_are_narrowed() {
        for (mut widths, line, expected) in [
            (vec![5, 10], 100, vec![5, 10]),
            (vec![5, 100], 40, vec![5, 28]),
            (vec![60, 100], 47, vec![20, 20]),
            (vec![60, 100], 10, vec![8, 8]),
        ] {
            fit(&mut widths, line);
            assert_eq!(widths, expected);
        }
    }
}
