//! What `\h NAME`, `SHOW FUNCTIONS` and `information_schema.routines` say of our functions.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use datafusion::logical_expr::{DocSection, Documentation};

/// A function: how it is called, what it does, and an example.
type Text = (&'static str, &'static str, &'static str);

const SECTION: DocSection =
    DocSection { include: true, label: "Forebay", description: Some("Functions around models") };

/// The beginning of the names of those that give NULL instead of an error.
const TRY: &str = "try_";

const TEXTS: &[Text] = &[
    (
        "ml_predict(MODEL model, input [, input …] [, MAP {'option': 'value'}])",
        "The output of a model for each row, or a struct if it has several; also a table function: \
         FROM ml_predict(TABLE t, MODEL model, DESCRIPTOR(column)).",
        "SELECT id, ml_predict(MODEL minilm, text) AS embedding FROM reviews",
    ),
    (
        "read_files(pattern [, on_error])",
        "A table with a row per file: url, size, modified and bytes; on_error 'null' gives NULL for \
         bytes that cannot be read.",
        "SELECT url, size FROM read_files('photos/*.jpg')",
    ),
    (
        "url_download(url [, timeout_s])",
        "The bytes at an http, https or file URL.",
        "SELECT url_download(link) AS bytes FROM products",
    ),
    (
        "row_hash(seed, value [, value …])",
        "A number that the seed and the values determine, the same in each run.",
        "SELECT value FROM range(0, 9) ORDER BY row_hash(7, value)",
    ),
    (
        "octet_length(value)",
        "The number of bytes of a text or a binary.",
        "SELECT octet_length('día')",
    ),
    (
        "text_chunk(text, max_tokens, overlap [, model])",
        "A list of parts of a text, each of at most so many tokens: words, or what the model's \
         tokenizer makes.",
        "SELECT unnest(text_chunk('one two three four', 3, 1)) AS chunk",
    ),
    (
        "audio_decode(bytes [, sample_rate])",
        "The samples, sample rate and channels of a WAV, FLAC or MP3 file.",
        "SELECT audio_decode(bytes, 16000)['samples'] FROM read_files('calls/*.wav')",
    ),
    (
        "image_decode(bytes [, mode])",
        "The image in a JPEG, PNG, WebP, GIF, BMP or TIFF file; mode is L, LA, RGB or RGBA.",
        "SELECT image_decode(bytes, 'L') FROM read_files('photos/*.jpg')",
    ),
    (
        "image_info(bytes)",
        "The format, height, width and mode of an image file, from its header alone.",
        "SELECT image_info(bytes)['width'] FROM read_files('photos/*.jpg')",
    ),
    (
        "image_resize(image, width, height [, filter])",
        "The image in another size; filter is nearest, box, bilinear, bicubic or lanczos.",
        "SELECT image_resize(image_decode(bytes), 320, 240) FROM read_files('photos/*.jpg')",
    ),
    (
        "image_crop(image, left, top, width, height)",
        "A part of an image, which must be within it.",
        "SELECT image_crop(image_decode(bytes), 0, 0, 8, 8) FROM read_files('photos/*.jpg')",
    ),
    (
        "center_crop(image, width [, height])",
        "The middle of an image; a square if there is no height.",
        "SELECT center_crop(image_decode(bytes), 8) FROM read_files('photos/*.jpg')",
    ),
    (
        "image_encode(image, format [, quality])",
        "The bytes of a file of the image: jpeg, png, webp, bmp or tiff.",
        "SELECT image_encode(image_decode(bytes), 'png') FROM read_files('photos/*.jpg')",
    ),
    (
        "image_to_tensor(image [, height, width [, mode]])",
        "The image's pixels as a tensor of the shape [height, width, channels].",
        "SELECT image_to_tensor(image_decode(bytes)) FROM read_files('photos/*.jpg')",
    ),
    (
        "image_preprocess(bytes, resize, crop)",
        "What classifiers take: the shorter side becomes `resize` pixels, the middle `crop` times \
         `crop` stays, as a tensor.",
        "SELECT image_preprocess(bytes, 256, 224) AS pixels FROM read_files('photos/*.jpg')",
    ),
    (
        "tensor_shape(tensor)",
        "A list of the tensor's sides.",
        "SELECT tensor_shape(from_list([1, 2, 3, 4], 2, 2))",
    ),
    (
        "from_list(list, side [, side …])",
        "A list of numbers as a tensor of this shape.",
        "SELECT from_list([1, 2, 3, 4], 2, 2)",
    ),
    (
        "to_list(tensor)",
        "A list of the numbers of a tensor or a vector, row by row.",
        "SELECT to_list(from_list([1, 2, 3, 4], 2, 2))",
    ),
    (
        "tensor_slice(tensor, dimension, first, last)",
        "The part of a tensor between two positions of a dimension, counted from 1.",
        "SELECT to_list(tensor_slice(from_list([1, 2, 3, 4], 2, 2), 1, 2, 2))",
    ),
    (
        "argmax(vector)",
        "The position of the largest number, counted from 1.",
        "SELECT argmax([0.1, 0.7, 0.2])",
    ),
    (
        "top_k(vector, k [, labels])",
        "The k largest numbers with their positions or labels, the largest first.",
        "SELECT top_k([0.1, 0.7, 0.2], 2, ['a', 'b', 'c'])",
    ),
    (
        "softmax(vector)",
        "A list of shares of 1, larger for larger numbers.",
        "SELECT softmax([1.0, 2.0])",
    ),
];

fn name_of(call: &str) -> &str {
    call.split('(').next().unwrap_or(call)
}

/// What is known of a function of ours, or of the `try_` form of one.
pub fn documentation(name: &str) -> Option<&'static Documentation> {
    static ALL: LazyLock<BTreeMap<String, Documentation>> = LazyLock::new(|| {
        let plain = TEXTS.iter().map(|(call, does, example)| {
            let text = Documentation::builder(SECTION, *does, *call).with_sql_example(*example);
            (name_of(call).to_owned(), text.build())
        });
        let tried = TEXTS.iter().map(|(call, does, example)| {
            let name = name_of(call);
            let does = format!("{does} NULL for what {name} refuses.");
            let example = example.replace(name, &format!("{TRY}{name}"));
            let text = Documentation::builder(SECTION, does, format!("{TRY}{call}"));
            (format!("{TRY}{name}"), text.with_sql_example(example).build())
        });
        plain.chain(tried).collect()
    });
    ALL.get(name)
}

/// Our functions, without those that differ in giving NULL.
pub fn documented() -> impl Iterator<Item = &'static Documentation> {
    TEXTS.iter().filter_map(|(call, ..)| documentation(name_of(call)))
}

#[cfg(test)]
mod tests {
    use crate::feature::functions;

    #[test]
    fn every_function_says_what_it_is() {
        for function in functions() {
            // DataFusion's wrapper of asynchronous functions passes no words on.
            let known = function.documentation().or_else(|| super::documentation(function.name()));
            let known = known.unwrap_or_else(|| panic!("{} has no documentation", function.name()));
            assert!(known.syntax_example.starts_with(function.name()), "{}", known.syntax_example);
        }
    }
}
