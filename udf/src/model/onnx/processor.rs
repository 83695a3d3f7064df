//! `preprocessor_config.json`: how transformers makes pixels of images, as far as a package can say it.
//!
//! What a file leaves out is its processor's default, so only known processors are read. A package says: the
//! shorter side, or both, become so many pixels, the middle stays, and values from 0 to 1 are normalized.

use std::path::Path;

use serde_json::Value;

use super::described::Refusal;
use super::json;
use crate::model::declaration::{Filter, Fit, Layout, Middle, TransformKind};
use crate::model::number::Number;

pub(super) const FILE: &str = "preprocessor_config.json";
/// From this size on, ConvNext's processor resizes both sides and crops nothing.
const CONVNEXT_WHOLE: u32 = 384;

/// What a processor does if its file does not say it.
struct Defaults {
    resize: u32,
    /// Which sides, and what one number in the file means.
    fit: Fit,
    crop: Option<u32>,
    /// In front of the crop, this share of an image's side is more than the rest.
    crop_pct: Option<f64>,
    filter: u64,
    mean: [f64; 3],
    std: [f64; 3],
}

const HALF: [f64; 3] = [0.5; 3];
const CLIP_MEAN: [f64; 3] = [0.48145466, 0.4578275, 0.40821073];
const CLIP_STD: [f64; 3] = [0.26862954, 0.26130258, 0.27577711];
const KNOWN: &str = "ViT, DeiT, Beit, Siglip, CLIP, Bit, ConvNext, MobileNetV2";

/// By the name of a processor's class, without what it ends in.
fn defaults(name: &str) -> Option<Defaults> {
    let (bilinear, bicubic) = (2, 3);
    let whole = Defaults {
        resize: 224,
        fit: Fit::Both,
        crop: None,
        crop_pct: None,
        filter: bicubic,
        mean: HALF,
        std: HALF,
    };
    Some(match name {
        "ViT" => Defaults { filter: bilinear, ..whole },
        "Beit" | "Siglip" => whole,
        "DeiT" => Defaults { resize: 256, crop: Some(224), ..whole },
        "CLIP" | "Bit" => {
            Defaults { fit: Fit::Shorter, crop: Some(224), mean: CLIP_MEAN, std: CLIP_STD, ..whole }
        }
        "ConvNext" => {
            let crop_pct = Some(0.875);
            Defaults { resize: CONVNEXT_WHOLE, fit: Fit::Shorter, crop_pct, ..whole }
        }
        "MobileNetV2" => {
            Defaults { resize: 256, fit: Fit::Shorter, crop: Some(224), filter: bilinear, ..whole }
        }
        _ => return None,
    })
}

/// The transform of image files.
pub(super) fn read(dir: &Path) -> Result<TransformKind, Refusal> {
    let stated = json::read(dir, FILE)?;
    let name = class(&stated);
    let Some(defaults) = defaults(name) else {
        return Err(refused(format!("names the processor '{name}', expected that of {KNOWN}")));
    };
    check_values(&stated)?;
    let (resize, fit, crop) = sides(&stated, &defaults)?;
    if crop > resize {
        return Err(refused(format!("resizes to {resize} pixels, and cuts out {crop}")));
    }
    let number = stated["resample"].as_u64().unwrap_or(defaults.filter);
    Ok(TransformKind::Image {
        resize,
        fit,
        middle: Middle::Floored,
        crop,
        filter: filter(number)?,
        layout: Layout::Chw,
        mean: channels(&stated, "image_mean", defaults.mean)?,
        std: channels(&stated, "image_std", defaults.std)?,
    })
}

fn refused(problem: String) -> Refusal {
    let remedy = "make a package of the model with `forebay model export --images`, which says more, or \
                  name the file and pass pixels";
    (format!("{FILE} {problem}"), remedy.to_owned())
}

/// Of a processor, `ViT` of `ViTImageProcessorFast`.
fn class(stated: &Value) -> &str {
    let named = ["image_processor_type", "feature_extractor_type"].map(|key| stated[key].as_str());
    let name = named.into_iter().flatten().next().unwrap_or_default();
    let ends = ["ImageProcessorFast", "ImageProcessorPil", "ImageProcessor", "FeatureExtractor"];
    ends.iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name)
}

/// Refuses values that are not from 0 to 1 and then normalized, or are images that keep their size.
fn check_values(stated: &Value) -> Result<(), Refusal> {
    for step in ["do_resize", "do_rescale", "do_normalize"] {
        if stated[step] == false {
            return Err(refused(format!("says {step} = false")));
        }
    }
    let factor = stated["rescale_factor"].as_f64().unwrap_or(1.0 / 255.0);
    if (factor * 255.0 - 1.0).abs() > 1e-3 {
        return Err(refused(format!("says rescale_factor = {factor}, expected 1/255")));
    }
    if stated["offset"] == true || stated["do_pad"] == true {
        Err(refused("moves values by an offset, or pads images".to_owned()))
    } else {
        Ok(())
    }
}

/// What the sides become, which, and what is cut out of the middle.
fn sides(stated: &Value, defaults: &Defaults) -> Result<(u32, Fit, u32), Refusal> {
    let (resize, fit) = match &stated["size"] {
        Value::Null => (defaults.resize, defaults.fit),
        Value::Object(sides) => {
            let side = |key: &str| sides.get(key).and_then(json::count);
            match (side("shortest_edge"), side("height"), side("width"), side("longest_edge")) {
                (Some(side), None, None, None) => (side, Fit::Shorter),
                (None, Some(height), Some(width), None) if height == width => (height, Fit::Both),
                _ => {
                    return Err(refused(format!(
                        "says size = {}, which is neither the shorter side nor both alike",
                        stated["size"]
                    )));
                }
            }
        }
        side => match json::count(side) {
            Some(side) => (side, defaults.fit),
            None => return Err(refused(format!("says size = {side}, expected pixels"))),
        },
    };
    let crops = stated["do_center_crop"].as_bool().unwrap_or(defaults.crop.is_some());
    if let (Some(default), false, Fit::Shorter) = (defaults.crop_pct, crops, fit) {
        let share = stated["crop_pct"].as_f64().unwrap_or(default);
        return match resize {
            CONVNEXT_WHOLE.. => Ok((resize, Fit::Both, resize)),
            // As Python makes a whole number of it.
            _ if share > 0.0 && share <= 1.0 => {
                Ok(((f64::from(resize) / share) as u32, Fit::Shorter, resize))
            }
            _ => Err(refused(format!("says crop_pct = {share}, expected a share of 1"))),
        };
    }
    match (crops, fit) {
        (true, _) => Ok((resize, fit, crop(&stated["crop_size"], defaults)?)),
        (false, Fit::Both) => Ok((resize, fit, resize)),
        (false, Fit::Shorter) => {
            Err(refused("cuts nothing out, so that images keep their proportions".to_owned()))
        }
    }
}

fn crop(stated: &Value, defaults: &Defaults) -> Result<u32, Refusal> {
    let side = match stated {
        Value::Null => defaults.crop,
        Value::Object(sides) if sides.get("height") == sides.get("width") => {
            sides.get("height").and_then(json::count)
        }
        side => json::count(side),
    };
    side.ok_or_else(|| refused(format!("says crop_size = {stated}, expected pixels")))
}

/// By Pillow's numbers.
fn filter(number: u64) -> Result<Filter, Refusal> {
    Ok(match number {
        0 => Filter::Nearest,
        1 => Filter::Lanczos,
        2 => Filter::Bilinear,
        3 => Filter::Bicubic,
        4 => Filter::Box,
        _ => return Err(refused(format!("says resample = {number}, expected 0 to 4"))),
    })
}

fn channels(stated: &Value, key: &str, default: [f64; 3]) -> Result<[Number; 3], Refusal> {
    let found = match &stated[key] {
        Value::Null => return Ok(default.map(Number)),
        Value::Array(numbers) => numbers.iter().map(Value::as_f64).collect::<Option<Vec<f64>>>(),
        _ => None,
    };
    let found = found.and_then(|numbers| <[f64; 3]>::try_from(numbers).ok());
    found.map(|numbers| numbers.map(Number)).ok_or_else(|| {
        refused(format!(
            "says {key} = {}, expected a number for each of three channels",
            stated[key]
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(text: &str) -> Result<TransformKind, String> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(FILE), text).unwrap();
        read(dir.path()).map_err(|(problem, _)| problem)
    }

    /// What images become, as sizes and filter.
    fn recipe(text: &str) -> (u32, Fit, u32, Filter) {
        let TransformKind::Image { resize, fit, crop, filter, .. } = made(text).unwrap() else {
            panic!("{text}")
        };
        (resize, fit, crop, filter)
    }

    #[test]
    fn what_a_file_leaves_out_is_its_processors_default() {
        use Filter::{Bicubic, Bilinear};
        for (text, expected) in [
            (
                r#"{"feature_extractor_type": "ViTFeatureExtractor"}"#,
                (224, Fit::Both, 224, Bilinear),
            ),
            (
                r#"{"image_processor_type": "ViTImageProcessorFast", "size": 384, "resample": 3}"#,
                (384, Fit::Both, 384, Bicubic),
            ),
            (
                r#"{"image_processor_type": "DeiTImageProcessor", "size": {"height": 248, "width": 248}}"#,
                (248, Fit::Both, 224, Bicubic),
            ),
            (
                r#"{"image_processor_type": "CLIPImageProcessor"}"#,
                (224, Fit::Shorter, 224, Bicubic),
            ),
            (
                r#"{"image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 256},
                    "crop_size": {"height": 224, "width": 224}}"#,
                (256, Fit::Shorter, 224, Bicubic),
            ),
            (
                r#"{"image_processor_type": "ConvNextImageProcessor", "size": 224, "resample": 2}"#,
                (256, Fit::Shorter, 224, Bilinear),
            ),
            (
                r#"{"image_processor_type": "ConvNextImageProcessor"}"#,
                (384, Fit::Both, 384, Bicubic),
            ),
        ] {
            assert_eq!(recipe(text), expected, "{text}");
        }
    }

    #[test]
    fn what_a_package_cannot_say_is_refused() {
        for (text, expected) in [
            ("{}", "names the processor '', expected that of ViT"),
            (r#"{"image_processor_type": "LevitImageProcessor"}"#, "the processor 'Levit'"),
            (
                r#"{"image_processor_type": "ViTImageProcessor", "do_rescale": false}"#,
                "do_rescale = false",
            ),
            (
                r#"{"image_processor_type": "ViTImageProcessor", "rescale_factor": 0.0078}"#,
                "rescale_factor = 0.0078, expected 1/255",
            ),
            (
                r#"{"image_processor_type": "ViTImageProcessor", "size": {"shortest_edge": 224}}"#,
                "cuts nothing out",
            ),
            (
                r#"{"image_processor_type": "ViTImageProcessor", "size": {"height": 1, "width": 2}}"#,
                "neither the shorter side nor both alike",
            ),
            (
                r#"{"image_processor_type": "CLIPImageProcessor", "size": 128}"#,
                "resizes to 128 pixels, and cuts out 224",
            ),
            (
                r#"{"image_processor_type": "ViTImageProcessor", "image_mean": [0.5]}"#,
                "image_mean = [0.5], expected a number for each of three channels",
            ),
            (
                r#"{"image_processor_type": "ViTImageProcessor", "resample": 9}"#,
                "resample = 9, expected 0 to 4",
            ),
        ] {
            let problem = made(text).unwrap_err();
            assert!(problem.starts_with(FILE) && problem.contains(expected), "{problem}");
        }
    }
}
