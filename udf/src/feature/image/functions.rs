//! The functions, and the Arrow side of what they compute.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BinaryBuilder, Int32Builder, StringBuilder, StructArray};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, Field, FieldRef, Fields};
use datafusion::common::{Result, exec_datafusion_err, internal_err, plan_err};
use datafusion::logical_expr::{
    ColumnarValue, Documentation, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
    Signature, Volatility,
};

use super::super::arguments::{
    BytesColumn, OnBadValue, is_bytes, size_literal, text, whole_number,
};
use super::super::tensor::{TensorBuilder, fixed_shape_field, variable_shape_field};
use super::column::{ImageBuilder, ImageColumn, image_type, is_image};
use super::decode::{self, decode};
use super::encode::{Encoding, encode};
use super::pixels::{Mode, Pixels};
use super::preprocess::{Recipe, Workspace};
use super::resize::{Filter, Resampler};
use crate::feature::documentation;

/// All functions of this folder, each also as `try_…`.
pub(crate) fn functions() -> Vec<Arc<ScalarUDF>> {
    let under = |on_bad_value: OnBadValue| {
        Function::ALL.map(|function| {
            Arc::new(ScalarUDF::new_from_impl(ImageFunction {
                function,
                on_bad_value,
                name: on_bad_value.name_of(function.name()),
                signature: Signature::user_defined(Volatility::Immutable),
            }))
        })
    };
    [OnBadValue::Fail, OnBadValue::Null].into_iter().flat_map(under).collect()
}

/// What is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Function {
    /// `(bytes [, mode])` → image
    Decode,
    /// `(bytes)` → format, size and mode
    Info,
    /// `(image, width, height [, filter])` → image
    Resize,
    /// `(image, left, top, width, height)` → image
    Crop,
    /// `(image, size)` or `(image, width, height)` → image
    CenterCrop,
    /// `(image, format [, quality])` → bytes
    Encode,
    /// `(image)` or `(image, height, width [, mode])` → tensor
    ToTensor,
    /// `(bytes, resize, crop)` → tensor
    Preprocess,
}

/// What an argument is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Bytes,
    Image,
    Number,
    Text,
}

impl Function {
    const ALL: [Self; 8] = [
        Self::Decode,
        Self::Info,
        Self::Resize,
        Self::Crop,
        Self::CenterCrop,
        Self::Encode,
        Self::ToTensor,
        Self::Preprocess,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Decode => "image_decode",
            Self::Info => "image_info",
            Self::Resize => "image_resize",
            Self::Crop => "image_crop",
            Self::CenterCrop => "center_crop",
            Self::Encode => "image_encode",
            Self::ToTensor => "image_to_tensor",
            Self::Preprocess => "image_preprocess",
        }
    }

    /// The arguments, and how many must be there at least.
    fn parameters(self) -> (&'static [(&'static str, Kind)], usize) {
        use Kind::{Bytes, Image, Number, Text};
        match self {
            Self::Decode => (&[("bytes", Bytes), ("mode", Text)], 1),
            Self::Info => (&[("bytes", Bytes)], 1),
            Self::Resize => {
                (&[("image", Image), ("width", Number), ("height", Number), ("filter", Text)], 3)
            }
            Self::Crop => (
                &[
                    ("image", Image),
                    ("left", Number),
                    ("top", Number),
                    ("width", Number),
                    ("height", Number),
                ],
                5,
            ),
            Self::CenterCrop => (&[("image", Image), ("width", Number), ("height", Number)], 2),
            Self::Encode => (&[("image", Image), ("format", Text), ("quality", Number)], 2),
            Self::ToTensor => {
                (&[("image", Image), ("height", Number), ("width", Number), ("mode", Text)], 1)
            }
            Self::Preprocess => (&[("bytes", Bytes), ("resize", Number), ("crop", Number)], 3),
        }
    }

    /// `image_decode(bytes [, mode])`
    fn usage(self) -> String {
        let (parameters, required) = self.parameters();
        let names = parameters.iter().enumerate().map(|(at, (name, _))| match at {
            0 => (*name).to_owned(),
            at if at < required => format!(", {name}"),
            _ => format!(" [, {name}]"),
        });
        format!("{}({})", self.name(), names.collect::<String>())
    }
}

/// A function of images under one policy.
#[derive(Debug, PartialEq, Eq, Hash)]
struct ImageFunction {
    function: Function,
    on_bad_value: OnBadValue,
    name: String,
    signature: Signature,
}

impl ScalarUDFImpl for ImageFunction {
    fn name(&self) -> &str {
        &self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn documentation(&self) -> Option<&Documentation> {
        documentation(self.name())
    }

    fn coerce_types(&self, found: &[DataType]) -> Result<Vec<DataType>> {
        let (parameters, required) = self.function.parameters();
        if found.len() < required || found.len() > parameters.len() {
            return plan_err!(
                "{} has {} arguments, expected {}",
                self.name,
                found.len(),
                self.function.usage()
            );
        }
        let coerced =
            found.iter().zip(parameters).map(|(found, (parameter, kind))| {
                match coerced(found, *kind) {
                    Some(coerced) => Ok(coerced),
                    None => plan_err!(
                        "{}: {parameter} is of type {found}, expected {}; the call is {}",
                        self.name,
                        kind.description(),
                        self.function.usage()
                    ),
                }
            });
        coerced.collect()
    }

    fn return_type(&self, _arg_types: &[DataType]) -> Result<DataType> {
        internal_err!("{} has a return field", self.name)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        let field = |data_type| Ok(Arc::new(Field::new(&self.name, data_type, true)));
        match self.function {
            Function::Decode | Function::Resize | Function::Crop | Function::CenterCrop => {
                field(image_type())
            }
            Function::Info => field(DataType::Struct(info_fields())),
            Function::Encode => field(DataType::Binary),
            Function::ToTensor if args.arg_fields.len() == 1 => {
                variable_shape_field(&self.name, DataType::UInt8, 3)
            }
            Function::ToTensor if args.arg_fields.len() == 2 => {
                plan_err!(
                    "{}: height is there and width is not: {}",
                    self.name,
                    self.function.usage()
                )
            }
            Function::ToTensor => {
                let height = size_literal(&args, 1, &self.name, "height")?;
                let width = size_literal(&args, 2, &self.name, "width")?;
                let mode = self.mode_literal(&args, 3)?;
                let shape = [height, width, mode.channels()];
                fixed_shape_field(&self.name, DataType::UInt8, &shape)
            }
            Function::Preprocess => {
                let recipe = self.recipe(&args)?;
                let side = recipe.crop as usize;
                fixed_shape_field(&self.name, DataType::UInt8, &[side, side, 3])
            }
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let is_constant = args.args.iter().all(|arg| matches!(arg, ColumnarValue::Scalar(_)));
        let rows = if is_constant { 1 } else { args.number_rows };
        let columns: Vec<ArrayRef> =
            args.args.into_iter().map(|arg| arg.into_array(rows)).collect::<Result<_>>()?;
        let column = self.compute(&columns, rows, &args.return_field)?;
        if is_constant {
            let value = datafusion::common::ScalarValue::try_from_array(&column, 0)?;
            return Ok(ColumnarValue::Scalar(value));
        }
        Ok(ColumnarValue::Array(column))
    }
}

impl Kind {
    fn description(self) -> &'static str {
        match self {
            Self::Bytes => "BINARY, the bytes of an image file",
            Self::Image => "an image, as image_decode gives it",
            Self::Number => "a whole number",
            Self::Text => "STRING",
        }
    }
}

fn coerced(found: &DataType, kind: Kind) -> Option<DataType> {
    match kind {
        Kind::Bytes if is_bytes(found) => Some(found.clone()),
        Kind::Bytes => found.is_null().then_some(DataType::Binary),
        Kind::Image => (is_image(found) || found.is_null()).then(image_type),
        Kind::Number => (found.is_integer() || found.is_null()).then_some(DataType::Int64),
        Kind::Text => (found.is_string() || found.is_null()).then_some(DataType::Utf8),
    }
}

fn info_fields() -> Fields {
    Fields::from(vec![
        Field::new("format", DataType::Utf8, true),
        Field::new("height", DataType::Int32, true),
        Field::new("width", DataType::Int32, true),
        Field::new("mode", DataType::Utf8, true),
    ])
}

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
    fn mode_literal(&self, args: &ReturnFieldArgs<'_>, at: usize) -> Result<Mode> {
        let Some(argument) = args.scalar_arguments.get(at) else { return Ok(Mode::Rgb) };
        let name = argument.and_then(|value| value.try_as_str().flatten());
        match name.map(Mode::parse) {
            Some(Ok(mode)) => Ok(mode),
            Some(Err(problem)) => plan_err!("{}: {problem}", self.name),
            None => plan_err!(
                "{}: mode must be a constant, because the type of the result depends on it",
                self.name
            ),
        }
    }

    fn recipe(&self, args: &ReturnFieldArgs<'_>) -> Result<Recipe> {
        let resize = size_literal(args, 1, &self.name, "resize")?;
        let crop = size_literal(args, 2, &self.name, "crop")?;
        match Recipe::try_new(resize as u32, crop as u32) {
            Ok(recipe) => Ok(recipe),
            Err(problem) => plan_err!("{}: {problem}", self.name),
        }
    }

    fn compute(&self, columns: &[ArrayRef], rows: usize, result: &FieldRef) -> Result<ArrayRef> {
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
