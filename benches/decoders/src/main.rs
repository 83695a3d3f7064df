//! JPEG → 224x224 RGB by each candidate, on one thread: milliseconds per image, the best of some
//! rounds over the files of a folder. See `run.sh`.

use std::error::Error;
use std::hint::black_box;
use std::io::Cursor;
use std::time::Instant;
use std::{env, fs};

use fast_image_resize::images::Image;
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};

const ROUNDS: usize = 5;
const RESIZE: usize = 256;
const CROP: usize = 224;

type Decoded = (usize, usize, Vec<u8>);
type Candidate = (&'static str, fn(&[u8]) -> Result<Decoded, Box<dyn Error>>);

const DECODERS: [Candidate; 6] = [
    ("zune-jpeg", |bytes| {
        let mut decoder = zune_jpeg::JpegDecoder::new(Cursor::new(bytes));
        let pixels = decoder.decode().map_err(|e| format!("{e:?}"))?;
        let (width, height) = decoder.dimensions().ok_or("no size")?;
        Ok((width, height, pixels))
    }),
    ("image (zune-jpeg inside)", |bytes| {
        let image = image::load_from_memory(bytes)?.into_rgb8();
        Ok((image.width() as usize, image.height() as usize, image.into_raw()))
    }),
    ("jpeg-decoder", |bytes| jpeg_decoder(bytes, false)),
    ("jpeg-decoder, reduced", |bytes| jpeg_decoder(bytes, true)),
    ("mozjpeg (libjpeg-turbo)", |bytes| mozjpeg(bytes, false)),
    ("mozjpeg (libjpeg-turbo), reduced", |bytes| mozjpeg(bytes, true)),
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
    Ok((info.width.into(), info.height.into(), pixels))
}

fn mozjpeg(bytes: &[u8], reduced: bool) -> Result<Decoded, Box<dyn Error>> {
    let mut decoder = mozjpeg::Decompress::new_mem(bytes)?;
    if reduced {
        let (width, height) = decoder.size();
        decoder.scale((RESIZE * 8).div_ceil(width.min(height)).min(8) as u8);
    }
    let mut decoder = decoder.rgb()?;
    let (width, height) = (decoder.width(), decoder.height());
    let pixels: Vec<[u8; 3]> = decoder.read_scanlines()?;
    decoder.finish()?;
    Ok((width, height, pixels.into_flattened()))
}

/// The middle of the image whose shorter side is resized.
fn recipe((width, height, pixels): Decoded) -> Result<Vec<u8>, Box<dyn Error>> {
    let source = Image::from_vec_u8(width as u32, height as u32, pixels, PixelType::U8x3)?;
    let mut target = Image::new(CROP as u32, CROP as u32, PixelType::U8x3);
    let scale = width.min(height) as f64 / RESIZE as f64;
    let part = CROP as f64 * scale;
    let options = ResizeOptions::new()
        .resize_alg(ResizeAlg::Convolution(FilterType::Bilinear))
        .crop((width as f64 - part) / 2.0, (height as f64 - part) / 2.0, part, part);
    Resizer::new().resize(&source, &mut target, &options)?;
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
            let decoding = best(&files, |bytes| decode(bytes).map(|image| image.2))?;
            let all = best(&files, |bytes| recipe(decode(bytes)?))?;
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
    work: impl Fn(&[u8]) -> Result<Vec<u8>, Box<dyn Error>>,
) -> Result<f64, Box<dyn Error>> {
    let mut best = f64::MAX;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for bytes in files {
            black_box(work(bytes)?);
        }
        best = best.min(start.elapsed().as_secs_f64() / files.len() as f64 * 1e3);
    }
    Ok(best)
}
