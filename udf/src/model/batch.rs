//! How large a model's batches are, given what is known of them on a device.

use super::declaration::{BatchLimits, ModelDeclaration, RuntimeKind, TransformKind};
use super::learned::{BatchAdvice, SearchRange};

/// Where the search for a batch of texts begins, in padded tokens.
const START_TOKENS: u64 = 16_384;
const LARGEST_TOKENS: u64 = 1 << 20;
/// Where that for a batch of images or of other tensors begins.
const START_ROWS: u64 = 128;
const LARGEST_ROWS: u64 = 1 << 16;
/// A window has rows for so many batches, so that those of similar length find each other.
const WINDOW_BATCHES: u64 = 8;
/// Tokens of a row, before any was seen.
const ROW_TOKENS: u64 = 64;

impl ModelDeclaration {
    /// In what range the size of batches is looked for on an accelerator; `None` for a model that stands for no
    /// real one and does not say how long its batches take.
    pub fn batch_range(&self) -> Option<SearchRange> {
        if let RuntimeKind::Emulated { curve: None, .. } = self.runtime {
            return None;
        }
        Some(match self.transform {
            TransformKind::Tokenize { .. } => {
                SearchRange { start: START_TOKENS, largest: LARGEST_TOKENS }
            }
            TransformKind::Tensor | TransformKind::Image { .. } => {
                SearchRange { start: START_ROWS, largest: LARGEST_ROWS }
            }
        })
    }

    /// The limits of batches of `range` on an accelerator, with what is known there. Those of a package count for
    /// nothing, unless its program takes one row at a time.
    pub fn searched_limits(&self, range: SearchRange, advice: BatchAdvice) -> BatchLimits {
        let size = advice.size.unwrap_or(range.start).max(1);
        let capped = |size: u64, cap: Option<u32>| {
            let size = u32::try_from(size).unwrap_or(u32::MAX);
            cap.map_or(size, |cap| cap.min(size)).max(1)
        };
        let caps = &self.batch_caps;
        let one = (self.batch.max_rows == 1).then_some(1);
        let max_rows = capped(size, caps.rows.or(one));
        let (max_tokens, rows) = match self.transform {
            TransformKind::Tokenize { .. } => {
                let tokens = capped(size, caps.tokens);
                let per_token = advice.rows_per_unit.unwrap_or(1.0 / ROW_TOKENS as f64);
                (Some(tokens), (f64::from(tokens) * per_token).ceil() as u64)
            }
            TransformKind::Tensor | TransformKind::Image { .. } => (None, u64::from(max_rows)),
        };
        let window = rows.saturating_mul(WINDOW_BATCHES).max(u64::from(self.batch.window_rows));
        BatchLimits {
            max_rows,
            max_tokens,
            max_bytes: caps.bytes,
            window_rows: caps.window_rows.unwrap_or(u32::try_from(window).unwrap_or(u32::MAX)),
        }
    }

    /// The declared limits, with what is known of a device on which no size is looked for.
    pub fn declared_limits(&self, advice: BatchAdvice) -> BatchLimits {
        let mut limits = self.batch.clone();
        let Some(size) = advice.size else { return limits };
        let size = u32::try_from(size).unwrap_or(u32::MAX).max(1);
        match self.transform {
            TransformKind::Tokenize { .. } => {
                limits.max_tokens = Some(limits.max_tokens.map_or(size, |known| known.min(size)));
            }
            TransformKind::Tensor | TransformKind::Image { .. } => {
                limits.max_rows = limits.max_rows.min(size);
            }
        }
        limits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{Folder, TEXT, open, tensors};
    use crate::model::ModelOptions;

    const CURVE: &str = "kind = \"emulated\"\nservice_ms = 1\n[runtime.curve]\nunit_ns = 10";

    fn text_model() -> ModelDeclaration {
        open(Folder::new(TEXT, &[("model.pt", b""), ("tokenizer.json", b"{}")]).path()).0
    }

    fn tensor_model(runtime: &str) -> ModelDeclaration {
        open(Folder::new(&tensors(&[("a", "INT")], &[("o", "INT")], runtime), &[]).path()).0
    }

    fn with(model: ModelDeclaration, pairs: &[(&str, &str)]) -> ModelDeclaration {
        let options = ModelOptions::try_from_pairs(pairs.iter().copied()).unwrap();
        let model = model.with_options(&options).unwrap();
        // Options travel with it.
        ModelDeclaration::from_text(&model.to_text().unwrap()).unwrap()
    }

    fn advice(size: u64, rows_per_unit: f64) -> BatchAdvice {
        BatchAdvice { size: Some(size), rows_per_unit: Some(rows_per_unit) }
    }

    #[test]
    fn batches_of_an_accelerator_begin_large_and_options_cap_them() {
        let limits = |model: &ModelDeclaration, advice| {
            model.searched_limits(model.batch_range().unwrap(), advice)
        };
        let text = text_model();
        let begin = limits(&text, BatchAdvice::default());
        assert_eq!((begin.max_rows, begin.max_tokens), (16_384, Some(16_384)));
        assert!(begin.window_rows >= 8 * 16_384 / 64, "{begin:?}");
        // Rows of four tokens: eight batches of them.
        let short = limits(&text, advice(1 << 17, 0.25));
        assert_eq!((short.max_tokens, short.window_rows), (Some(1 << 17), 8 << 15));
        let capped = with(text, &[("max_batch_tokens", "4096"), ("max_batch_rows", "32")]);
        let capped = limits(&capped, advice(1 << 17, 0.25));
        assert_eq!(
            (capped.max_rows, capped.max_tokens, capped.window_rows),
            (32, Some(4096), 8192)
        );
        let tensor = tensor_model(CURVE);
        let begin = limits(&tensor, BatchAdvice::default());
        assert_eq!((begin.max_rows, begin.max_tokens, begin.window_rows), (128, None, 1024));
        let capped = with(tensor.clone(), &[("batch_window_rows", "7"), ("max_batch_bytes", "9")]);
        let capped = limits(&capped, advice(64, 1.0));
        assert_eq!((capped.max_rows, capped.max_bytes, capped.window_rows), (64, Some(9), 7));
        let mut one_row = tensor;
        one_row.batch.max_rows = 1;
        assert_eq!(limits(&one_row, advice(64, 1.0)).max_rows, 1);
    }

    #[test]
    fn what_is_declared_is_kept_unless_it_does_not_fit() {
        let text = text_model();
        assert_eq!(text.declared_limits(BatchAdvice::default()), text.batch);
        let small = text.declared_limits(advice(2, 1.0));
        assert_eq!((small.max_rows, small.max_tokens), (text.batch.max_rows, Some(2)));
        let tensor = tensor_model("kind = \"emulated\"\nservice_ms = 1");
        assert_eq!(tensor.batch_range(), None);
        assert_eq!(tensor.declared_limits(advice(2, 1.0)).max_rows, 2);
        assert_eq!(tensor.declared_limits(advice(1 << 40, 1.0)), tensor.batch);
    }
}
