//! What the functions compute, row by row.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BinaryBuilder, Int32Builder, StringBuilder, StructArray};
use arrow::buffer::NullBuffer;
use arrow::datatypes::FieldRef;
use datafusion::common::{Result, exec_datafusion_err, internal_err};

use super::super::arguments::{BytesColumn, text, whole_number};
use super::super::tensor::TensorBuilder;
use super::column::{ImageBuilder, ImageColumn};
use super::decode::{self, decode};
use super::encode::{Encoding, encode};
use super::pixels::{Mode, Pixels};
use super::preprocess::{Recipe, Workspace};
use super::resize::{Filter, Resampler};
use super::signature::{Function, ImageFunction, info_fields};

/// The arguments of one row behind the first; a NULL among them makes the result NULL.
struct RowArguments<'a> {
    columns: &'a [ArrayRef],
    row: usize,
}

impl RowArguments<'_> {
    fn has_null(&self) -> bool {
        self.columns.iter().any(|column| column.is_null(self.row))
    }

    /// What is no size becomes 0, which no image has.
    fn size(&self, at: usize) -> Result<u32> {
        let number = self.number(at)?.unwrap_or_default();
        Ok(u32::try_from(number).unwrap_or_default())
    }

    /// A place within an image; what is none becomes one outside of every image.
    fn place(&self, at: usize) -> Result<u32> {
        let number = self.number(at)?.unwrap_or_default();
        Ok(u32::try_from(number).unwrap_or(u32::MAX))
    }

    fn number(&self, at: usize) -> Result<Option<i64>> {
        match self.columns.get(at) {
            Some(column) => whole_number(column, self.row),
            None => Ok(None),
        }
    }

    fn text(&self, at: usize) -> Result<Option<&str>> {
        match self.columns.get(at) {
            Some(column) => text(column, self.row),
            None => Ok(None),
        }
    }
}

impl ImageFunction {
    pub(super) fn compute(
        &self,
        columns: &[ArrayRef],
        rows: usize,
        result: &FieldRef,
    ) -> Result<ArrayRef> {
        let Some((first, others)) = columns.split_first() else {
            return internal_err!("{} without arguments", self.name);
        };
        let arguments = (0..rows).map(|row| RowArguments { columns: others, row });
        match self.function {
            Function::Decode => self.decode(first, arguments),
            Function::Info => self.info(first, rows),
            Function::Preprocess => self.preprocess(first, result, arguments),
            Function::Encode => self.encode(first, arguments),
            Function::ToTensor => self.to_tensor(first, result, arguments),
            Function::Resize | Function::Crop | Function::CenterCrop => {
                self.change(first, arguments)
            }
        }
    }

    fn good<T>(&self, result: std::result::Result<T, String>) -> Result<Option<T>> {
        self.on_bad_value.apply(self.function.name(), result)
    }

    fn decode<'a>(
        &self,
        bytes: &ArrayRef,
        rows: impl Iterator<Item = RowArguments<'a>>,
    ) -> Result<ArrayRef> {
        let bytes = bytes_of(bytes)?;
        let mut images = ImageBuilder::default();
        for arguments in rows {
            let image = match bytes.get(arguments.row) {
                Some(bytes) if !arguments.has_null() => {
                    let mode = arguments.text(0)?.map_or(Ok(Mode::Rgb), Mode::parse);
                    self.good(mode.and_then(|mode| decode(bytes, mode)))?
                }
                _ => None,
            };
            images.append(image);
        }
        images.finish()
    }

    fn info(&self, bytes: &ArrayRef, rows: usize) -> Result<ArrayRef> {
        let bytes = bytes_of(bytes)?;
        let (mut format, mut mode) = (StringBuilder::new(), StringBuilder::new());
        let (mut height, mut width) = (Int32Builder::new(), Int32Builder::new());
        let mut is_valid = Vec::with_capacity(rows);
        for row in 0..rows {
            let info = match bytes.get(row) {
                Some(bytes) => self.good(decode::info(bytes))?,
                None => None,
            };
            format.append_option(info.map(|info| info.format.name()));
            height.append_option(info.and_then(|info| i32::try_from(info.height).ok()));
            width.append_option(info.and_then(|info| i32::try_from(info.width).ok()));
            mode.append_option(info.map(|info| info.mode.name()));
            is_valid.push(info.is_some());
        }
        let columns: Vec<ArrayRef> = vec![
            Arc::new(format.finish()),
            Arc::new(height.finish()),
            Arc::new(width.finish()),
            Arc::new(mode.finish()),
        ];
        let nulls = NullBuffer::from(is_valid);
        Ok(Arc::new(StructArray::try_new(info_fields(), columns, Some(nulls))?))
    }

    fn preprocess<'a>(
        &self,
        bytes: &ArrayRef,
        result: &FieldRef,
        rows: impl Iterator<Item = RowArguments<'a>>,
    ) -> Result<ArrayRef> {
        let mut tensors = TensorBuilder::try_new(result, bytes.len())?;
        let bytes = bytes_of(bytes)?;
        let mut workspace = Workspace::default();
        for arguments in rows {
            let pixels = match bytes.get(arguments.row) {
                Some(bytes) => {
                    let recipe = Recipe::try_new(arguments.size(0)?, arguments.size(1)?);
                    self.good(recipe.and_then(|recipe| recipe.apply(bytes, &mut workspace)))?
                }
                None => None,
            };
            let side = arguments.size(1)? as usize;
            match pixels {
                Some(pixels) => tensors.append(&pixels, &[side, side, Mode::Rgb.channels()])?,
                None => tensors.append_null()?,
            }
        }
        tensors.finish()
    }

    fn encode<'a>(
        &self,
        images: &ArrayRef,
        rows: impl Iterator<Item = RowArguments<'a>>,
    ) -> Result<ArrayRef> {
        let images = ImageColumn::try_new(images)?;
        let mut files = BinaryBuilder::new();
        for arguments in rows {
            let file = match (images.get(arguments.row), arguments.text(0)?) {
                (Some(image), Some(format)) if !arguments.has_null() => {
                    let encoding = Encoding::parse(format, arguments.number(1)?);
                    let file = encoding.and_then(|encoding| encode(image?, encoding));
                    self.good(file)?
                }
                _ => None,
            };
            let length = file.as_ref().map_or(0, Vec::len);
            if files.values_slice().len() + length > i32::MAX as usize {
                return Err(exec_datafusion_err!(
                    "{}: the files of one batch have more than 2 GiB; SET \
                     datafusion.execution.batch_size to fewer rows",
                    self.name
                ));
            }
            files.append_option(file);
        }
        Ok(Arc::new(files.finish()))
    }

    fn change<'a>(
        &self,
        images: &ArrayRef,
        rows: impl Iterator<Item = RowArguments<'a>>,
    ) -> Result<ArrayRef> {
        let images = ImageColumn::try_new(images)?;
        let mut resampler = Resampler::default();
        let mut changed = ImageBuilder::default();
        for arguments in rows {
            let image = match images.get(arguments.row) {
                Some(image) if !arguments.has_null() => {
                    let image = match image {
                        Ok(image) => self.changed(&image, &arguments, &mut resampler)?,
                        Err(problem) => Err(problem),
                    };
                    self.good(image)?
                }
                _ => None,
            };
            changed.append(image);
        }
        changed.finish()
    }

    /// One image, resized or cropped. The inner result is about the row.
    fn changed(
        &self,
        image: &Pixels<'_>,
        arguments: &RowArguments<'_>,
        resampler: &mut Resampler,
    ) -> Result<std::result::Result<Pixels<'static>, String>> {
        Ok(match self.function {
            Function::Resize => {
                let size = (arguments.size(0)?, arguments.size(1)?);
                let filter = arguments.text(2)?.map_or(Ok(Filter::Bilinear), Filter::parse);
                filter.and_then(|filter| resampler.resize(image, None, size, filter))
            }
            Function::Crop => {
                let (left, top) = (arguments.place(0)?, arguments.place(1)?);
                image.crop(left, top, arguments.size(2)?, arguments.size(3)?)
            }
            _ => {
                let width = arguments.size(0)?;
                let is_square = arguments.columns.len() == 1;
                let height = if is_square { width } else { arguments.size(1)? };
                image.center_crop(width, height)
            }
        })
    }

    fn to_tensor<'a>(
        &self,
        images: &ArrayRef,
        result: &FieldRef,
        rows: impl Iterator<Item = RowArguments<'a>>,
    ) -> Result<ArrayRef> {
        let mut tensors = TensorBuilder::try_new(result, images.len())?;
        let images = ImageColumn::try_new(images)?;
        for arguments in rows {
            let image = match images.get(arguments.row) {
                Some(image) => {
                    let image = match tensors.elements() {
                        Some(elements) => {
                            let size = (arguments.size(0)?, arguments.size(1)?);
                            image.and_then(|image| of_size(image, size, elements))
                        }
                        None => image,
                    };
                    self.good(image)?
                }
                None => None,
            };
            match image {
                Some(image) => {
                    let size = [image.height as usize, image.width as usize];
                    let shape = [size[0], size[1], image.mode.channels()];
                    tensors.append(&image.data, &shape)?;
                }
                None => tensors.append_null()?,
            }
        }
        tensors.finish()
    }
}

/// The image, if it has the size, in the mode that has as many bytes.
fn of_size(
    image: Pixels<'_>,
    (height, width): (u32, u32),
    bytes: usize,
) -> std::result::Result<Pixels<'_>, String> {
    if (image.height, image.width) != (height, width) {
        return Err(format!(
            "an image is {}x{}, expected {width}x{height}; resize or crop it first",
            image.width, image.height
        ));
    }
    let pixels = height as usize * width as usize;
    let mode = Mode::ALL.into_iter().find(|mode| mode.channels() * pixels == bytes);
    Ok(image.into_mode(mode.unwrap_or(Mode::Rgb)))
}

fn bytes_of(column: &ArrayRef) -> Result<BytesColumn<'_>> {
    match BytesColumn::of(column) {
        Some(bytes) => Ok(bytes),
        None => internal_err!("expected BINARY after coercion, found {}", column.data_type()),
    }
}
