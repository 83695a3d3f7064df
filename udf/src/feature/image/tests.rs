//! Against Pillow and torchvision, on the images that `make setup` makes.

use std::fs;

use serde::Deserialize;

use super::decode::{decode, info};
use super::encode::{Encoding, encode};
use super::pixels::{Mode, Pixels};
use super::preprocess::{Fit, Middle, Recipe, Workspace};
use super::resize::{Filter, Resampler};
use crate::fixture::prepared;

#[derive(Deserialize)]
struct Reference {
    name: String,
    format: String,
    width: u32,
    height: u32,
    recipe: (u32, u32),
}

impl Reference {
    fn all() -> Vec<Self> {
        let text = fs::read_to_string(prepared("images/reference.json")).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    fn bytes(&self) -> Vec<u8> {
        fs::read(prepared("images/good").join(&self.name)).unwrap()
    }

    fn expected(&self, what: &str) -> Vec<u8> {
        fs::read(prepared("images/expected").join(format!("{}.{what}", self.name))).unwrap()
    }

    /// Pillow has another decoder, which rounds differently.
    fn is_rounded(&self) -> bool {
        self.name == "lossy.webp"
    }
}

/// How two images of a size differ, in steps of 256.
#[derive(Debug)]
struct Difference {
    mean: f64,
    max: u8,
}

fn difference(found: &[u8], expected: &[u8]) -> Difference {
    assert_eq!(found.len(), expected.len());
    let all = || found.iter().zip(expected).map(|(a, b)| a.abs_diff(*b));
    let mean = all().map(f64::from).sum::<f64>() / found.len() as f64;
    Difference { mean, max: all().max().unwrap_or_default() }
}

fn assert_close(found: &[u8], expected: &[u8], mean: f64, max: u8, what: &str) {
    let found = difference(found, expected);
    assert!(found.mean <= mean && found.max <= max, "{what}: {found:?}, allowed {mean} and {max}");
}

#[test]
fn pixels_are_those_of_pillow() {
    for reference in Reference::all() {
        let bytes = reference.bytes();
        let found = info(&bytes).unwrap();
        assert_eq!(found.format.name(), reference.format);
        assert_eq!((found.width, found.height), (reference.width, reference.height));
        let expected = reference.expected("rgb");
        if expected.is_empty() {
            continue;
        }
        let image = decode(&bytes, Mode::Rgb).unwrap();
        assert_eq!((image.width, image.height), (reference.width, reference.height));
        let (mean, max) = if reference.is_rounded() { (0.6, 24) } else { (0.0, 0) };
        assert_close(&image.data, &expected, mean, max, &reference.name);
    }
}

#[test]
fn resized_images_are_those_of_pillow() {
    for reference in Reference::all() {
        let image = decode(&reference.bytes(), Mode::Rgb).unwrap();
        let resize = |filter| Resampler::default().resize(&image, None, (37, 31), filter);
        let found = resize(Filter::Bilinear).unwrap();
        let max = if reference.is_rounded() { 6 } else { 1 };
        assert_close(&found.data, &reference.expected("resized"), 0.5, max, &reference.name);
    }
}

#[test]
fn the_recipe_is_that_of_torchvision() {
    // One for all, so that each image finds the memory of another.
    let mut workspace = Workspace::default();
    for reference in Reference::all() {
        let (resize, crop) = reference.recipe;
        let recipe = Recipe::try_new(resize, crop).unwrap();
        let found = recipe.apply(&reference.bytes(), &mut workspace).unwrap();
        assert_eq!(found.len(), recipe.bytes());
        let (mean, max) = match () {
            // Decoded at a half or a quarter of the size.
            () if reference.name.starts_with("large") => (0.9, 8),
            () if reference.is_rounded() => (0.6, 6),
            () => (0.5, 1),
        };
        assert_close(&found, &reference.expected("recipe"), mean, max, &reference.name);
    }
}

/// Where an odd number of pixels is cut off, the two differ.
#[test]
fn the_middle_is_that_of_torchvision_or_of_transformers() {
    let mut workspace = Workspace::default();
    let mut differ = 0;
    for reference in Reference::all() {
        let (resize, crop) = reference.recipe;
        let recipe = Recipe::try_new(resize, crop).unwrap().with_middle(Middle::Floored);
        let found = recipe.apply(&reference.bytes(), &mut workspace).unwrap();
        let (mean, max) = match () {
            () if reference.name.starts_with("large") => (0.9, 8),
            () if reference.is_rounded() => (0.6, 6),
            () => (0.5, 1),
        };
        let expected = reference.expected("floored");
        assert_close(&found, &expected, mean, max, &reference.name);
        differ += usize::from(difference(&expected, &reference.expected("recipe")).max > 8);
    }
    assert!(differ > 0, "no image tells them apart");
}

#[test]
fn both_sides_become_one_size_as_pillow_makes_them() {
    let mut workspace = Workspace::default();
    for reference in Reference::all() {
        let recipe = Recipe::try_new(48, 48).unwrap().with_fit(Fit::Both);
        let found = recipe.apply(&reference.bytes(), &mut workspace).unwrap();
        let (mean, max) = match () {
            // Decoded at a part of the size.
            () if reference.name.starts_with("large") => (0.9, 8),
            () if reference.name.starts_with("wide") => (0.5, 1),
            () if reference.is_rounded() => (0.6, 6),
            () => (0.5, 1),
        };
        assert_close(&found, &reference.expected("square"), mean, max, &reference.name);
    }
}

/// Also where the part begins in the middle of a block, and where a filter looks far around it.
#[test]
fn a_part_of_a_jpeg_gives_the_pixels_of_the_whole() {
    let all = Reference::all();
    let jpegs = all.iter().filter(|reference| reference.format == "jpeg");
    // Not those that are reduced, nor those that are turned after columns were resampled, then rows.
    let is_other = |name: &str| name.starts_with("large") || name.starts_with("exif");
    for reference in jpegs.filter(|reference| !is_other(&reference.name)) {
        let bytes = reference.bytes();
        let whole = decode(&bytes, Mode::Rgb).unwrap();
        let lossless = encode(whole, Encoding::parse("png", None).unwrap()).unwrap();
        for (resize, crop) in [(64, 20), (72, 71), (149, 90), (300, 100)] {
            for filter in [Filter::Bilinear, Filter::Bicubic, Filter::Lanczos] {
                let recipe = Recipe::try_new(resize, crop).unwrap().with_filter(filter);
                let [found, expected] = [&bytes, &lossless]
                    .map(|bytes| recipe.apply(bytes, &mut Workspace::default()).unwrap());
                let what = format!("{} {resize} {crop} {filter:?}", reference.name);
                assert_close(&found, &expected, 0.0, 0, &what);
            }
        }
    }
}

#[test]
fn bad_images_are_errors_that_say_why() {
    let cases = [
        ("truncated.jpg", "jpeg of 7207 bytes cannot be decoded: the image ends before"),
        ("gap.jpg", "jpeg of 7209 bytes cannot be decoded: Corrupt JPEG data: premature end"),
        ("truncated.png", "png of 7683 bytes cannot be decoded: the image ends before"),
        ("header_only.jpg", "jpeg of 64 bytes cannot be decoded"),
        ("empty.jpg", "there are no bytes"),
        ("mislabelled.jpg", "the bytes, which begin with 3c 68 74 6d 6c 3e 3c 62, are not JPEG"),
        ("bomb.png", "an image of 60000x60000 has 3600000000 pixels, more than"),
        ("bomb.jpg", "an image of 65000x65000 has 4225000000 pixels, more than"),
        ("noise.jpg", "jpeg of 4004 bytes cannot be decoded"),
    ];
    let recipe = Recipe::try_new(64, 56).unwrap();
    for (name, expected) in cases {
        let bytes = fs::read(prepared("images/bad").join(name)).unwrap();
        let problem = decode(&bytes, Mode::Rgb).map(|_| name).unwrap_err();
        assert!(problem.contains(expected), "{name}: {problem}");
        assert!(!problem.contains('\n'), "{name}: {problem:?}");
        assert_eq!(recipe.apply(&bytes, &mut Workspace::default()).unwrap_err(), problem);
    }
}

#[test]
fn no_prefix_of_a_file_and_no_changed_byte_panics() {
    let recipe = Recipe::try_new(8, 8).unwrap();
    for reference in Reference::all().iter().filter(|reference| reference.bytes().len() < 20_000) {
        let bytes = reference.bytes();
        for length in (0..bytes.len()).step_by(bytes.len() / 40 + 1) {
            let _ = recipe.apply(&bytes[..length], &mut Workspace::default());
        }
        for at in (0..bytes.len()).step_by(bytes.len() / 40 + 1) {
            let mut changed = bytes.clone();
            changed[at] ^= 0x5a;
            let _ = recipe.apply(&changed, &mut Workspace::default());
        }
    }
}

#[test]
fn what_is_encoded_without_loss_is_decoded_again() {
    let photo = decode(&fs::read(prepared("images/good/alpha.png")).unwrap(), Mode::Rgba).unwrap();
    for mode in Mode::ALL {
        let image = photo.clone().into_mode(mode);
        for name in ["png", "webp", "bmp", "tiff"] {
            let file = encode(image.clone(), Encoding::parse(name, None).unwrap());
            let file = file.unwrap_or_else(|e| panic!("{name} of {mode:?}: {e}"));
            assert_eq!(info(&file).unwrap().format.name(), name);
            let again = decode(&file, mode).unwrap();
            assert!(again == image, "{name} of {mode:?}");
        }
        let file = encode(image.clone(), Encoding::parse("jpeg", Some(95)).unwrap()).unwrap();
        let (again, image) = (decode(&file, Mode::L).unwrap(), image.into_mode(Mode::L));
        assert_close(&again.data, &image.data, 2.0, 30, "jpeg");
    }
}

#[test]
fn grey_and_opacity_are_those_of_pillow() {
    let one = Pixels::try_new(1, 1, Mode::Rgba, vec![200, 100, 50, 7]).unwrap();
    assert_eq!(*one.clone().into_mode(Mode::L).data, [124]);
    assert_eq!(*one.clone().into_mode(Mode::Rgb).data, [200, 100, 50]);
    assert_eq!(*one.into_mode(Mode::La).data, [124, 7]);
}

#[test]
fn crops_are_within_the_image() {
    let image = Pixels::try_new(3, 2, Mode::L, vec![1, 2, 3, 4, 5, 6]).unwrap();
    assert_eq!(*image.crop(1, 0, 2, 2).unwrap().data, [2, 3, 5, 6]);
    assert_eq!(*image.center_crop(1, 2).unwrap().data, [2, 5]);
    for (left, top, width, height) in [(2, 0, 2, 1), (0, 0, 0, 1), (u32::MAX, 0, 2, 1)] {
        let problem = image.crop(left, top, width, height).unwrap_err();
        assert!(problem.contains("is not within an image of 3x2"), "{problem}");
    }
    assert!(image.center_crop(4, 1).is_err());
}
