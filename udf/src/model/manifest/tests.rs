//! What a description says, and mistakes in it.

use super::*;
use crate::fixture::{TEXT, tensors};

const HASH: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

fn text() -> String {
    format!("{TEXT}\n[files]\n\"model.pt\" = \"{HASH}\"\n\"tokenizer.json\" = \"{HASH}\"\n")
}

fn error(text: &str) -> String {
    Manifest::parse(text.as_bytes(), "/models/x").unwrap_err().to_string()
}

#[test]
fn a_declaration_has_the_values_of_its_package() {
    let manifest = Manifest::parse(text().as_bytes(), "/models/x").unwrap();
    let url = Url::parse("file:///models/x").unwrap();
    let model = manifest.declaration("minilm", url, HASH.to_owned());
    assert_eq!(model.name, "minilm");
    assert_eq!(model.signature.to_string(), "(text STRING) -> (embedding FLOAT[3])");
    assert_eq!(model.device, DeviceChoice::Auto);
    assert!(!model.needs_accelerator);
    assert_eq!(model.resources_text(), "cpus=1, gpus=1, memory=1.0 MiB");
}

#[test]
fn an_emulated_model_needs_its_accelerator() {
    let text =
        tensors(&[("t", "STRING")], &[("d", "STRING")], "kind = \"emulated\"\nservice_ms = 1");
    let manifest = Manifest::parse(text.as_bytes(), "/models/x").unwrap();
    let url = Url::parse("file:///models/x").unwrap();
    let model = manifest.declaration("m", url, HASH.to_owned());
    assert_eq!(model.device, DeviceChoice::Emulated);
    assert!(model.needs_accelerator);
}

#[test]
#[allow(clippy::too_many_lines, reason = "a table of cases")]
fn mistakes_are_named() {
    let cases: [(&str, &str, &str); 31] = [
        ("format = 1", "format = 2", "format is 2, this version reads format 1"),
        ("format = 1", "", "format is missing"),
        ("format = 1", "format = ", "line 2:"),
        ("version = \"1\"", "version = \"1\"\nweights = 3", "line 5: unknown field `weights`"),
        ("name = \"test\"", "name = \" \"", "name is empty"),
        ("STRING", "TEXTS", "'TEXTS'"),
        ("STRING", "BIGINT", "one [[input]] of type STRING"),
        (
            "version = \"1\"",
            "version = \"1\"\nprompt = \"query\"",
            "prompt is 'query', which [prompts] does not hold",
        ),
        (
            "version = \"1\"",
            "version = \"1\"\nprecisions = { fp8 = 0.1 }",
            "[precisions] holds 'fp8' = 0.1",
        ),
        (
            "version = \"1\"",
            "version = \"1\"\nprecisions = { bf16 = nan }",
            "[precisions] holds 'bf16' = NaN",
        ),
        (
            "version = \"1\"",
            "version = \"1\"\nprompts = { \"\" = \"x\" }",
            "[prompts] holds one without a name",
        ),
        ("FLOAT[3]", "STRING", "cannot give output 'embedding' of type STRING without labels"),
        ("FLOAT[3]", "BINARY", "runtime 'torch' cannot give output 'embedding' of type BINARY"),
        ("FLOAT[3]", "UINT8[3]", "runtime 'torch' cannot give output 'embedding' of type UINT8[3]"),
        (
            "\"FLOAT[3]\"",
            "\"FLOAT[3]\"\nlabels = \"l.json\"",
            "output 'embedding' of type FLOAT[3] has labels",
        ),
        (
            "\"FLOAT[3]\"",
            "\"STRING\"\nlabels = \"l.json\"",
            "labels is 'l.json', which [files] does not list",
        ),
        ("\"STRING\"", "\"STRING\"\nshape = [2, 2]", "cannot have the shape [2, 2]"),
        ("kind = \"tokenize\"", "kind = \"tokenise\"", "unknown variant `tokenise`"),
        ("max_tokens = 8", "max_tokens = 0", "transform.max_tokens is 0"),
        (
            "pad_id = 0",
            "pad_id = 0\ntemplate = \"{text} {other}\"",
            "transform.template is '{text} {other}'",
        ),
        ("pad_id = 0", "pad_id = 0\nvocabulary = 0", "transform.vocabulary is 0"),
        ("\"attention_mask\"", "\"mask\"", "holds 'mask'"),
        ("gpus = 1", "gpus = 1.5", "resources.gpus"),
        ("memory = \"1 MiB\"", "memory = \"big\"", "line 28:"),
        ("max_rows = 4", "max_rows = 0", "batch.max_rows is 0, expected at least 1"),
        ("\"model.pt\" = \"", "\"other.pt\" = \"", "runtime.program is 'model.pt', which [files]"),
        ("\"tokenizer.json\" = \"", "\"t.json\" = \"", "transform.tokenizer is 'tokenizer.json'"),
        ("\"model.pt\" = \"", "\"../model.pt\" = \"", "'../model.pt'"),
        ("\"model.pt\" = \"", "\"/model.pt\" = \"", "'/model.pt'"),
        ("\"model.pt\" = \"", "\"a/./model.pt\" = \"", "'a/./model.pt'"),
        (&format!("\"{HASH}\"\n\"tok"), "\"abc\"\n\"tok", "not a SHA-256"),
    ];
    for (right, wrong, expected) in cases {
        let message = error(&text().replacen(right, wrong, 1));
        assert!(message.contains(expected), "{message} lacks {expected}");
        assert!(message.starts_with("model package /models/x: model.toml"), "{message}");
        assert!(!message.contains('\n'), "{message}");
    }
}

#[test]
fn native_code_comes_beside_torchscript_and_says_what_it_is_for() {
    let torch = "kind = \"torch\"\nprogram = \"model.pt\"\n";
    let one = "[[runtime.compiled]]\nprogram = \"tokenizer.json\"\narchitecture = \"cpu-avx2\"\n\
               torch = \"2.11.0\"\n";
    let aoti = |program: &str, compiled: &str| {
        text().replacen(torch, &format!("kind = \"aoti\"\n{program}{compiled}"), 1)
    };
    let program = "program = \"model.pt\"\n";
    let manifest = Manifest::parse(aoti(program, one).as_bytes(), "/models/x").unwrap();
    let RuntimeKind::Aoti { compiled, .. } = &manifest.runtime else { panic!("not aoti") };
    assert_eq!((compiled[0].precision, compiled.len()), (Precision::Fp32, 1));
    for (text, expected) in [
        (aoti("", one), "runtime 'aoti' has no program: name the TorchScript file"),
        (aoti(program, ""), "runtime 'aoti' has no [[runtime.compiled]]"),
        (aoti(program, &[one, one].concat()), "two [[runtime.compiled]] are for cpu-avx2 in fp32"),
        (
            aoti(program, &one.replace("avx2", "avx")),
            "expected cpu, cpu-avx2, cpu-avx512, or a GPU's",
        ),
        (aoti(program, &one.replace("torch =", "release =")), "unknown field `release`"),
        (
            aoti(program, &one.replace("torch", "precision = \"int8\"\ntorch")),
            "is in int8, expected",
        ),
        (
            aoti(program, &one.replace("tokenizer.json", "m.pt2")),
            "'m.pt2', which [files] does not list",
        ),
        (
            aoti(program, &one.replace("tokenizer.json", "../m")),
            "'../m', which [files] does not list",
        ),
    ] {
        let message = error(&text);
        assert!(message.contains(expected), "{message} lacks {expected}");
        assert!(message.contains("or export the package again"), "{message}");
    }
}

#[test]
fn the_memory_of_an_emulated_device_is_said_in_the_order_of_batches() {
    let with = |free: &str| {
        let curve = format!("[runtime.curve]\nunit_ns = 1\nfree_bytes = {free}");
        let runtime = format!("kind = \"emulated\"\nservice_ms = 1\n{curve}");
        tensors(&[("a", "FLOAT")], &[("b", "FLOAT")], &runtime)
    };
    for free in ["[[5, 10], [2, 10]]", "[[0, 10], [5, 1], [5, 10]]"] {
        assert!(error(&with(free)).contains("runtime.curve.free_bytes has"), "{free}");
    }
    Manifest::parse(with("[[0, 10], [5, 1]]").as_bytes(), "x").unwrap();
}

#[test]
fn columns_need_distinct_names() {
    let text = tensors(
        &[("a", "FLOAT"), ("a", "FLOAT")],
        &[("b", "FLOAT")],
        "kind = \"emulated\"\nservice_ms = 1",
    );
    assert!(error(&text).contains("[[input]] 'a' is there twice"));
}

#[test]
fn bytes_that_are_no_text_are_refused() {
    let message = Manifest::parse(&[0xff, 0xfe], "x").unwrap_err().to_string();
    assert!(message.contains("not UTF-8"), "{message}");
}
