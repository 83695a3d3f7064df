use std::fs;
use std::path::{Path, PathBuf};

use crate::fixture::{created, prepared};
use crate::model::{
    Activation, Dense, Determinism, Filter, Fit, Function, Head, Layout, Middle, ModelDeclaration,
    Number, Pooling, Precision, RuntimeKind, Side, TransformKind,
};

fn fixture(name: &str) -> PathBuf {
    prepared("fixtures/onnx").join(name)
}

fn model(location: &Path) -> ModelDeclaration {
    created(location, None).unwrap().0
}

fn head_of(model: &ModelDeclaration) -> Head {
    match &model.runtime {
        RuntimeKind::Onnx { head: Some(head), .. } => head.clone(),
        other => panic!("{other:?}"),
    }
}

fn pool(modes: Vec<Pooling>, dense: Vec<Dense>, normalize: bool) -> Head {
    Head::Pool { modes, dense, normalize, dimension: None }
}

fn refusal(location: &Path, precision: Option<Precision>) -> String {
    let error = created(location, precision).map(|(model, _)| model.signature).unwrap_err();
    let message = error.to_string();
    assert!(message.starts_with("model package ") && !message.contains('\n'), "{message}");
    message
}

/// A copy of a model's folder, to be damaged.
fn copy(name: &str) -> tempfile::TempDir {
    fn copy_into(from: &Path, to: &Path) {
        fs::create_dir_all(to).unwrap();
        for entry in fs::read_dir(from).unwrap() {
            let path = entry.unwrap().path();
            let target = to.join(path.file_name().unwrap());
            if path.is_dir() {
                copy_into(&path, &target);
            } else {
                fs::copy(&path, target).unwrap();
            }
        }
    }
    let folder = tempfile::tempdir().unwrap();
    copy_into(&fixture(name).join("model"), folder.path());
    folder
}

fn rewrite(folder: &Path, file: &str, change: impl FnOnce(&mut serde_json::Value)) {
    let path = folder.join(file);
    let mut value = match fs::read_to_string(&path) {
        Ok(text) => serde_json::from_str(&text).unwrap(),
        Err(_) => serde_json::json!({}),
    };
    change(&mut value);
    fs::write(path, value.to_string()).unwrap();
}

#[test]
fn signatures_are_those_of_the_programs() {
    for (name, expected) in [
        ("logistic", "(X FLOAT[4]) -> (label BIGINT, probabilities FLOAT[3])"),
        ("forest", "(X FLOAT[4]) -> (label STRING, probabilities FLOAT[3])"),
        ("boosted", "(X FLOAT[4]) -> (variable FLOAT)"),
        (
            "mixed",
            "(colour STRING, size FLOAT, weight FLOAT) -> (label BIGINT, probabilities FLOAT[3])",
        ),
        ("images", "(pixel_values FLOAT[768]) -> (logits FLOAT[5])"),
        ("one-image", "(pixel_values FLOAT[768]) -> (logits FLOAT[5])"),
    ] {
        let model = model(&fixture(name).join("model.onnx"));
        assert_eq!(model.signature.to_string(), expected);
        assert_eq!(model.runtime.name(), "onnx");
        let RuntimeKind::Onnx { one_row, .. } = &model.runtime else { panic!("{name}") };
        assert_eq!(*one_row, name == "one-image");
    }
}

#[test]
fn a_folder_says_what_is_made_of_texts() {
    let bert = model(&fixture("bert/model"));
    assert_eq!(bert.signature.to_string(), "(text STRING) -> (embedding FLOAT[32])");
    assert_eq!(head_of(&bert), pool(vec![Pooling::Mean], vec![], true));
    let TransformKind::Tokenize { max_tokens, arguments, truncation, .. } = &bert.transform else {
        panic!("{:?}", bert.transform);
    };
    assert_eq!((*max_tokens, *truncation), (48, Side::Right));
    assert_eq!(arguments, &["input_ids", "attention_mask", "token_type_ids"]);

    let distilbert = model(&fixture("distilbert/model"));
    assert_eq!(distilbert.signature.to_string(), "(text STRING) -> (embedding FLOAT[64])");
    let modes = vec![Pooling::Cls, Pooling::Mean];
    assert_eq!(head_of(&distilbert), pool(modes, vec![], false));

    let reranker = model(&fixture("rerank-bert/model"));
    assert_eq!(reranker.signature.to_string(), "(query STRING, passage STRING) -> (score FLOAT)");
    assert_eq!(head_of(&reranker), Head::Score { activation: Activation::Sigmoid });

    let classifier = model(&fixture("classification-bert/model"));
    assert_eq!(
        classifier.signature.to_string(),
        "(text STRING) -> (label STRING, score FLOAT, scores FLOAT[3])"
    );
    let labels = ["negative", "größer als", "neutral"].map(str::to_owned).to_vec();
    assert_eq!(head_of(&classifier), Head::Classify { activation: Activation::Softmax, labels });
}

#[test]
fn a_file_of_a_folder_is_the_folders_model_by_that_program() {
    let program = fixture("quantised/model/onnx/model_quantized.onnx");
    let model = model(&program);
    assert_eq!(model.precision, Precision::Int8);
    // Its steps depend on the largest number of a batch.
    assert_eq!(model.determinism, Determinism::Volatile);
    assert_eq!(model.signature.to_string(), "(text STRING) -> (embedding FLOAT[32])");
    assert!(model.location.as_str().ends_with("/onnx/model_quantized.onnx"), "{}", model.location);
    let asked = refusal(&program, Some(Precision::Fp16));
    assert!(asked.contains("it holds int8, and precision = 'fp16' was asked for"), "{asked}");
}

#[test]
fn two_programs_that_fit_are_both_named() {
    let folder = fixture("quantised/ambiguous");
    assert!(created(&folder, None).is_ok());
    let message = refusal(&folder, Some(Precision::Int8));
    assert!(
        message.contains("2 of its programs hold int8: onnx/model_int8.onnx, ")
            && message
                .contains("onnx/model_quantized.onnx; name the one that you mean: LOCATION '"),
        "{message}"
    );
    let message = refusal(&folder, Some(Precision::Bf16));
    assert!(message.contains("none of its programs holds bf16"), "{message}");
}

#[test]
fn models_that_no_query_can_use_are_refused_with_a_remedy() {
    for (name, expected, remedy) in [
        ("zipmap", "output 'output_probability' is a sequence", "options={'zipmap': False}"),
        (
            "refused/operator",
            "operator 'Sentencepiece' of domain 'ai.onnx.contrib' is a custom one",
            "export the model without it",
        ),
        (
            "refused/contradiction",
            "its shapes contradict each other: input 'b' is float [1, 2], of 1 rows, and input 'a' is \
             float [N, 2], of any number",
            "export the model with a first dimension",
        ),
        (
            "refused/dynamic",
            "input 'a' is float [N, width], and how many values a row has is not fixed",
            "make_dynamic_shape_fixed --dim_param width",
        ),
        (
            "refused/four-rows",
            "input 'a' is float [4, 2], so it takes 4 rows at a time",
            "export the model with a first dimension",
        ),
        ("refused/bytes", "input 'a' is uint8 [N, 2]", "export the model with inputs of these"),
        (
            "refused/position",
            "input 'position_ids' is int64 [batch, length], which no tokenizer gives; it gives \
             input_ids, attention_mask, token_type_ids",
            "export the model so that it takes no other inputs",
        ),
    ] {
        let message = refusal(&fixture(name).join("model.onnx"), None);
        assert!(message.contains(expected), "{message} lacks {expected}");
        assert!(message.contains(remedy), "{message} lacks {remedy}");
    }
}

#[test]
fn files_that_are_cut_off_or_something_else_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    let whole = fs::read(fixture("logistic/model.onnx")).unwrap();
    for (bytes, expected) in [
        (&whole[..whole.len() / 2], "it is not a valid ONNX model, or was cut off ("),
        (b"", "it is not a valid ONNX model, or was cut off (it names no version of ONNX)"),
        (b"PK\x03\x04 a zip file", "it is not a valid ONNX model"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1", "run `git lfs pull`"),
    ] {
        fs::write(&path, bytes).unwrap();
        let message = refusal(&path, None);
        assert!(message.contains(expected), "{message}");
    }
    // Each cut of a file is an error of its own or a model, never a panic.
    for length in 0..whole.len() {
        fs::write(&path, &whole[..length]).unwrap();
        created(&path, None).ok();
    }
}

#[test]
fn weights_in_other_files_are_pinned_and_missed() {
    let folder = copy("external");
    let model = model(folder.path());
    let description = model.description.unwrap();
    assert!(description.contains("\"onnx/model.onnx_data\" = "), "{description}");
    fs::remove_file(folder.path().join("onnx/model.onnx_data")).unwrap();
    let message = refusal(folder.path(), None);
    assert!(message.contains("it needs onnx/model.onnx_data, which is missing"), "{message}");
    assert!(message.contains("fetch all files of the model"), "{message}");
}

#[test]
fn a_file_that_has_changed_is_named() {
    let folder = copy("bert");
    let model = model(folder.path());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let fetch = || {
        let env = crate::fixture::env();
        runtime.block_on(crate::model::Package::fetch(model.pinned(), &env))
    };
    fetch().unwrap();
    // What was read of it when the model was created counts, not what it says now.
    rewrite(folder.path(), "1_Pooling/config.json", |config| *config = serde_json::json!({}));
    fetch().unwrap();
    fs::write(folder.path().join("tokenizer.json"), "{}").unwrap();
    let message = fetch().unwrap_err().to_string();
    assert!(message.contains("tokenizer.json has changed (SHA-256 is "), "{message}");
}

#[test]
fn what_a_folder_says_of_texts_is_followed_or_refused() {
    let folder = copy("bert");
    let path = folder.path();
    rewrite(path, "tokenizer_config.json", |config| config["truncation_side"] = "left".into());
    rewrite(path, "config_sentence_transformers.json", |config| {
        config["prompts"] = serde_json::json!({ "query": "query: " });
        config["default_prompt_name"] = "query".into();
        config["truncate_dim"] = 8.into();
    });
    let created = model(path);
    assert_eq!(created.signature.to_string(), "(text STRING) -> (embedding FLOAT[8])");
    assert_eq!(created.prompt_text(), "query: ");
    let TransformKind::Tokenize { truncation, .. } = created.transform else { panic!() };
    assert_eq!(truncation, Side::Left);

    rewrite(path, "1_Pooling/config.json", |config| config["include_prompt"] = false.into());
    assert!(refusal(path, None).contains("(include_prompt)"));
    rewrite(path, "1_Pooling/config.json", |config| config["pooling_mode"] = "median".into());
    assert!(refusal(path, None).contains("1_Pooling/config.json has the pooling \"median\""));
    rewrite(path, "modules.json", |modules| modules[1]["type"] = "models.LSTM".into());
    let message = refusal(path, None);
    assert!(message.contains("modules.json has a module 'LSTM', which is in no ONNX file"));
    assert!(message.contains("`forebay model export`"), "{message}");
    fs::write(path.join("modules.json"), "[").unwrap();
    assert!(refusal(path, None).contains("modules.json is not valid JSON"));
    fs::remove_file(path.join("tokenizer.json")).unwrap();
    fs::remove_file(path.join("modules.json")).unwrap();
    let message = refusal(path, None);
    assert!(
        message.contains("it takes token ids, and there is no tokenizer.json in "),
        "{message}"
    );
}

#[test]
fn labels_and_activations_are_checked() {
    let folder = copy("classification-bert");
    let path = folder.path();
    rewrite(path, "config.json", |config| {
        config["id2label"] = serde_json::json!({ "0": "no", "1": "yes" });
    });
    let message = refusal(path, None);
    assert!(message.contains("output 'logits' is float [batch_size, 3], and config.json names 2"));
    rewrite(path, "config.json", |config| {
        config["id2label"] = serde_json::json!({ "1": "no", "2": "yes", "3": "?" });
    });
    assert!(refusal(path, None).contains("id2label does not name the labels"));
    rewrite(path, "config.json", |config| {
        config["id2label"] = serde_json::json!({ "0": "a", "1": "b", "2": "c" });
        config["sentence_transformers"]["activation_fn"] = "torch.nn.Tanh".into();
    });
    assert!(refusal(path, None).contains("it names the activation 'Tanh'"));
}

#[test]
fn classifiers_of_tokens_give_lists() {
    let tagger = model(&fixture("tokens-bert/model"));
    assert_eq!(
        tagger.signature.to_string(),
        "(text STRING) -> (labels STRING[], scores FLOAT[], starts INT[], ends INT[])"
    );
    let labels = ["O", "B-PER", "I-PER", "B-LOC"].map(str::to_owned).to_vec();
    assert_eq!(head_of(&tagger), Head::Tag { labels });
    let TransformKind::Tokenize { arguments, .. } = &tagger.transform else { panic!() };
    assert_eq!(arguments[3..], ["token_starts", "token_ends"]);

    let folder = copy("tokens-bert");
    rewrite(folder.path(), "config.json", |config| {
        config["id2label"] = serde_json::json!({ "0": "O", "1": "B" });
    });
    let message = refusal(folder.path(), None);
    assert!(message.contains("and config.json names 2 labels; correct id2label"), "{message}");
}

#[test]
fn matrices_behind_the_pooling_are_read_and_pinned() {
    let created = model(&fixture("dense/model"));
    assert_eq!(created.signature.to_string(), "(text STRING) -> (embedding FLOAT[12])");
    let dense =
        |folder: &str, function| Dense { weights: format!("{folder}/model.safetensors"), function };
    let layers = vec![dense("2_Dense", Function::Tanh), dense("3_Dense", Function::Identity)];
    assert_eq!(head_of(&created), pool(vec![Pooling::Mean], layers, true));
    let description = created.description.unwrap();
    assert!(description.contains("\"2_Dense/model.safetensors\" = "), "{description}");

    let folder = copy("dense");
    let path = folder.path();
    rewrite(path, "2_Dense/config.json", |config| config["activation_function"] = "GELU".into());
    assert!(refusal(path, None).contains("2_Dense/config.json has the activation 'GELU'"));
    rewrite(path, "2_Dense/config.json", |config| {
        config["activation_function"] = "torch.nn.modules.linear.Identity".into();
        config["module_input_name"] = "token_embeddings".into();
    });
    assert!(refusal(path, None).contains("the module_input_name \"token_embeddings\", expected"));
    rewrite(path, "2_Dense/config.json", |config| {
        config["module_input_name"] = "sentence_embedding".into();
        config["out_features"] = 0.into();
    });
    assert!(refusal(path, None).contains("2_Dense/config.json states no out_features"));
    fs::remove_file(path.join("3_Dense/model.safetensors")).unwrap();
    rewrite(path, "2_Dense/config.json", |config| config["out_features"] = 20.into());
    let message = refusal(path, None);
    assert!(message.contains("are not in 3_Dense/model.safetensors; fetch all files"), "{message}");
    rewrite(path, "modules.json", |modules| {
        let all = modules.as_array_mut().unwrap();
        all.swap(3, 4);
    });
    assert!(refusal(path, None).contains("modules.json has 3_Dense behind a Normalize"));
}

#[test]
fn a_folder_of_images_takes_image_files() {
    let vit = model(&fixture("image-vit-files/model"));
    assert_eq!(
        vit.signature.to_string(),
        "(image BINARY) -> (label STRING, score FLOAT, scores FLOAT[3])"
    );
    let transform = TransformKind::Image {
        resize: 32,
        fit: Fit::Both,
        crop: 32,
        filter: Filter::Bilinear,
        layout: Layout::Chw,
        middle: Middle::Floored,
        mean: [0.5; 3].map(Number),
        std: [0.5; 3].map(Number),
    };
    assert_eq!(vit.transform, transform);
    let embedding = model(&fixture("image-embedding-files/model"));
    assert_eq!(embedding.signature.to_string(), "(image BINARY) -> (embedding FLOAT[32])");

    let folder = copy("image-vit-files");
    let path = folder.path();
    rewrite(path, "preprocessor_config.json", |config| config["size"] = 64.into());
    let message = refusal(path, None);
    assert!(
        message.contains(
            "input 'pixel_values' is float [batch_size, 3, 32, 32], and \
                          preprocessor_config.json makes 64 times 64 pixels; correct the sizes"
        ),
        "{message}"
    );
    rewrite(path, "preprocessor_config.json", |config| {
        config["image_processor_type"] = "LevitImageProcessor".into();
    });
    let message = refusal(path, None);
    assert!(message.contains("names the processor 'Levit'") && message.contains("--images"));
    // Its pixels can still be passed.
    fs::remove_file(path.join("preprocessor_config.json")).unwrap();
    let pixels = model(path);
    assert_eq!(pixels.signature.to_string(), "(pixel_values FLOAT[3072]) -> (logits FLOAT[3])");
}

#[test]
fn halves_are_chosen_by_precision() {
    let (half, _) = created(&fixture("half/model"), Some(Precision::Fp16)).unwrap();
    assert_eq!(half.precision, Precision::Fp16);
    let RuntimeKind::Onnx { program, .. } = &half.runtime else { panic!() };
    assert_eq!(program, "onnx/model_fp16.onnx");
    assert_eq!(half.determinism, Determinism::Stable);
}
