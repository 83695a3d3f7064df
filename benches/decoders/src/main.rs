//! JPEG → 224x224 RGB by each candidate, on one thread: milliseconds per image, the best of some
//! rounds over the files of a folder. See `run.sh`.

use std::error::Error;
use std::hint::black_box;
use std::io::Cursor;
use std::time::Instant;
use std::{env, fs};

use fast_image_resize::images::Image;
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};
use turbojpeg_sys as turbo;

const ROUNDS: usize = 5;
const RESIZE: usize = 256;
const CROP: usize = 224;

/// An image, or a part of it, at a part of its size.
struct Decoded {
    width: usize,
    height: usize,
    pixels: Vec<u8>,
    /// The whole image, in pixels of this size.
    whole: (f64, f64),
    /// Where in it this part begins.
    start: (usize, usize),
}

impl Decoded {
    fn whole(width: usize, height: usize, pixels: Vec<u8>) -> Self {
        Self { width, height, pixels, whole: (width as f64, height as f64), start: (0, 0) }
    }
}

/// What is kept from one image to the next, as Forebay keeps it.
#[derive(Default)]
struct Workspace {
    resizer: Resizer,
    memory: Vec<u8>,
}

/// Of bytes, and memory to use if the decoder can use any.
type Decode = fn(&[u8], Vec<u8>) -> Result<Decoded, Box<dyn Error>>;

const DECODERS: [(&str, Decode); 7] = [
    ("zune-jpeg", |bytes, _| {
        let mut decoder = zune_jpeg::JpegDecoder::new(Cursor::new(bytes));
        let pixels = decoder.decode().map_err(|e| format!("{e:?}"))?;
        let (width, height) = decoder.dimensions().ok_or("no size")?;
        Ok(Decoded::whole(width, height, pixels))
    }),
    ("image (zune-jpeg inside)", |bytes, _| {
        let image = image::load_from_memory(bytes)?.into_rgb8();
        Ok(Decoded::whole(image.width() as usize, image.height() as usize, image.into_raw()))
    }),
    ("jpeg-decoder", |bytes, _| jpeg_decoder(bytes, false)),
    ("jpeg-decoder, reduced", |bytes, _| jpeg_decoder(bytes, true)),
    ("libjpeg-turbo", |bytes, memory| libjpeg_turbo(bytes, memory, false, false)),
    ("libjpeg-turbo, reduced", |bytes, memory| libjpeg_turbo(bytes, memory, true, false)),
    ("libjpeg-turbo, reduced, the part that stays", |bytes, memory| {
        libjpeg_turbo(bytes, memory, true, true)
    }),
];

fn jpeg_decoder(bytes: &[u8], reduced: bool) -> Result<Decoded, Box<dyn Error>> {
    let mut decoder = jpeg_decoder::Decoder::new(bytes);
    decoder.read_info()?;
    let info = decoder.info().ok_or("no header")?;
    if reduced {
        let factor = RESIZE as f64 / f64::from(info.width.min(info.height));
        let side = |side: u16| (f64::from(side) * factor).ceil() as u16;
        decoder.scale(side(info.width), side(info.height))?;
    }
    let pixels = decoder.decode()?;
    let info = decoder.info().ok_or("no header")?;
    Ok(Decoded::whole(info.width.into(), info.height.into(), pixels))
}

/// Reduced as Forebay does it: at least twice the pixels that are needed.
fn libjpeg_turbo(
    bytes: &[u8],
    mut pixels: Vec<u8>,
    reduced: bool,
    cut: bool,
) -> Result<Decoded, Box<dyn Error>> {
    struct Handle(turbo::tjhandle);
    impl Drop for Handle {
        fn drop(&mut self) {
            // SAFETY: not used again.
            unsafe { turbo::tj3Destroy(self.0) }
        }
    }
    // SAFETY: the handle is valid until it is dropped, pointers and lengths are those of slices, and
    // as many pixels are written as are asked for.
    unsafe {
        let handle = Handle(turbo::tj3Init(turbo::TJINIT_TJINIT_DECOMPRESS as i32));
        let check = |status| if status == 0 { Ok(()) } else { Err("it cannot be decoded") };
        let get = |parameter: turbo::TJPARAM| turbo::tj3Get(handle.0, parameter as i32) as usize;
        let length = bytes.len() as turbo::size_t;
        check(turbo::tj3DecompressHeader(handle.0, bytes.as_ptr(), length))?;
        let full_width = get(turbo::TJPARAM_TJPARAM_JPEGWIDTH);
        let full_height = get(turbo::TJPARAM_TJPARAM_JPEGHEIGHT);
        let shorter = full_width.min(full_height);
        let divisor = [8, 4, 2].into_iter().find(|by| reduced && shorter / by >= 2 * RESIZE);
        let divisor = divisor.unwrap_or(1);
        let factor = turbo::tjscalingfactor { num: 1, denom: divisor as i32 };
        check(turbo::tj3SetScalingFactor(handle.0, factor))?;
        let whole = (full_width as f64 / divisor as f64, full_height as f64 / divisor as f64);
        let [mut width, mut height] = [full_width, full_height].map(|side| side.div_ceil(divisor));
        let mut start = (0, 0);
        if cut {
            let pixels_of_one = whole.0.min(whole.1) / RESIZE as f64;
            // As the filter looks around, and two for the interpolation of colours.
            let around = pixels_of_one.max(1.0) + 2.0;
            let part = CROP as f64 * pixels_of_one;
            let first = |whole: f64| ((whole - part) / 2.0 - around).max(0.0) as usize;
            let end = |whole: f64| ((whole + part) / 2.0 + around).ceil() as usize;
            // As wide as the blocks of these files.
            start = (first(whole.0) / 16 * 16, first(whole.1));
            width = end(whole.0).min(width) - start.0;
            height = end(whole.1).min(height) - start.1;
            let [x, y, w, h] = [start.0, start.1, width, height].map(|pixels| pixels as i32);
            check(turbo::tj3SetCroppingRegion(handle.0, turbo::tjregion { x, y, w, h }))?;
        }
        pixels.resize(width * height * 3, 0);
        let format = turbo::TJPF_TJPF_RGB;
        let target = pixels.as_mut_ptr();
        check(turbo::tj3Decompress8(handle.0, bytes.as_ptr(), length, target, 0, format))?;
        Ok(Decoded { width, height, pixels, whole, start })
    }
}

/// The middle of the image whose shorter side is resized.
fn recipe(image: Decoded, workspace: &mut Workspace) -> Result<Vec<u8>, Box<dyn Error>> {
    let Decoded { width, height, pixels, whole, start } = image;
    let source = Image::from_vec_u8(width as u32, height as u32, pixels, PixelType::U8x3)?;
    let mut target = Image::new(CROP as u32, CROP as u32, PixelType::U8x3);
    let part = CROP as f64 * whole.0.min(whole.1) / RESIZE as f64;
    let (left, top) = ((whole.0 - part) / 2.0, (whole.1 - part) / 2.0);
    let options = ResizeOptions::new()
        .resize_alg(ResizeAlg::Convolution(FilterType::Bilinear))
        .crop(left - start.0 as f64, top - start.1 as f64, part, part);
    workspace.resizer.resize(&source, &mut target, &options)?;
    workspace.memory = source.into_vec();
    Ok(target.into_vec())
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = env::args().nth(1).ok_or("usage: decoders FOLDER")?;
    let mut sizes: Vec<_> = fs::read_dir(folder)?.collect::<Result<_, _>>()?;
    sizes.sort_by_key(|entry| entry.path());
    for size in sizes {
        let files = fs::read_dir(size.path())?
            .map(|file| fs::read(file?.path()))
            .collect::<Result<Vec<_>, _>>()?;
        for (name, decode) in DECODERS {
            let mut memory = Vec::new();
            let decoding = best(&files, |bytes| {
                memory = decode(bytes, std::mem::take(&mut memory))?.pixels;
                Ok(())
            })?;
            let mut workspace = Workspace::default();
            let all = best(&files, |bytes| {
                let image = decode(bytes, std::mem::take(&mut workspace.memory))?;
                black_box(recipe(image, &mut workspace)?);
                Ok(())
            })?;
            let size = size.file_name();
            let size = size.display();
            println!(
                "{{\"size\": \"{size}\", \"decoder\": \"{name}\", \"decode_ms\": {decoding:.2}, \
                 \"recipe_ms\": {all:.2}}}"
            );
        }
    }
    Ok(())
}

fn best(
    files: &[Vec<u8>],
    mut work: impl FnMut(&[u8]) -> Result<(), Box<dyn Error>>,
) -> Result<f64, Box<dyn Error>> {
    let mut best = f64::MAX;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for bytes in files {
            work(bytes)?;
        }
        best = best.min(start.elapsed().as_secs_f64() / files.len() as f64 * 1e3);
    }
    Ok(best)
}
