use arrow::array::{Int64Array, LargeStringArray, StringArray, StringViewArray};
use arrow::datatypes::Int32Type;

use super::*;
use crate::fixture::{Folder, TEXT, open};
use crate::model::ModelOptions;

/// Words 0 to 9 are their own ids plus 10; padded and truncated in ways that must not count.
const TOKENIZER: &str = r#"{
        "version": "1.0",
        "truncation": {"direction": "Left", "max_length": 3, "strategy": "LongestFirst", "stride": 0},
        "padding": {"strategy": {"Fixed": 20}, "direction": "Right", "pad_to_multiple_of": null,
            "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"},
        "added_tokens": [],
        "normalizer": null,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
                {"SpecialToken": {"id": "[SEP]", "type_id": 0}}],
            "pair": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
                {"SpecialToken": {"id": "[SEP]", "type_id": 0}},
                {"Sequence": {"id": "B", "type_id": 1}},
                {"SpecialToken": {"id": "[SEP]", "type_id": 1}}],
            "special_tokens": {
                "[CLS]": {"id": "[CLS]", "ids": [1], "tokens": ["[CLS]"]},
                "[SEP]": {"id": "[SEP]", "ids": [2], "tokens": ["[SEP]"]}}
        },
        "decoder": null,
        "model": {"type": "WordLevel", "unk_token": "[UNK]", "vocab": {"[PAD]": 0, "[CLS]": 1,
            "[SEP]": 2, "[UNK]": 3, "0": 10, "1": 11, "2": 12, "3": 13, "4": 14, "5": 15, "6": 16,
            "7": 17, "8": 18, "9": 19}}
    }"#;

fn try_load(description: &str, tokenizer: &str) -> Result<Tokenize, RuntimeError> {
    let files: [(&str, &[u8]); 2] = [("model.pt", b""), ("tokenizer.json", tokenizer.as_bytes())];
    let folder = Folder::new(description, &files);
    let (model, package) = open(folder.path());
    Tokenize::load(&model, &package)
}

fn tokens(column: impl Array + 'static) -> Vec<Option<Vec<i32>>> {
    let transform = try_load(TEXT, TOKENIZER).unwrap();
    let prepared = transform.apply(&[Arc::new(column)]).unwrap().columns;
    assert_eq!(prepared[0].data_type(), transform.output_fields()[0].data_type());
    let rows = prepared[0].as_list::<i32>().iter();
    rows.map(|row| Some(row?.as_primitive::<Int32Type>().values().to_vec())).collect()
}

#[test]
fn every_layout_of_text_gives_the_same_tokens() {
    let texts = vec![Some("1 2"), None, Some(""), Some("9 x")];
    let expected = [Some(vec![1, 11, 12, 2]), None, Some(vec![1, 2]), Some(vec![1, 19, 3, 2])];
    assert_eq!(tokens(StringArray::from(texts.clone())), expected);
    assert_eq!(tokens(LargeStringArray::from(texts.clone())), expected);
    assert_eq!(tokens(StringViewArray::from(texts)), expected);
}

#[test]
fn sliced_columns_give_the_tokens_of_their_own_rows() {
    let column = StringArray::from(vec![Some("1"), None, Some("2"), Some("3")]).slice(1, 2);
    assert_eq!(tokens(column), [None, Some(vec![1, 12, 2])]);
}

#[test]
fn long_texts_are_cut_and_keep_their_special_tokens() {
    let long = "1 2 3 4 5 6 7 8 9 ".repeat(20_000);
    let expected = vec![1, 11, 12, 13, 14, 15, 16, 2];
    assert_eq!(tokens(StringArray::from(vec![long.as_str()])), [Some(expected)]);
}

#[test]
fn texts_may_be_cut_at_their_beginning() {
    let description = TEXT.replace("pad_id = 0", "pad_id = 0\ntruncation = \"left\"");
    let transform = try_load(&description, TOKENIZER).unwrap();
    let text = StringArray::from(vec!["1 2 3 4 5 6 7 8 9"]);
    let prepared = transform.apply(&[Arc::new(text)]).unwrap().columns;
    assert_eq!(lists(&prepared[0]), [Some(vec![1, 14, 15, 16, 17, 18, 19, 2])]);
}

/// `TEXT` with a second input and these arguments.
fn pair(arguments: &str) -> String {
    let second = "[[input]]\nname = \"other\"\ntype = \"STRING\"\n\n[[output]]";
    TEXT.replace("[[output]]", second).replace("\"attention_mask\"", arguments)
}

fn lists(column: &ArrayRef) -> Vec<Option<Vec<i32>>> {
    let rows = column.as_list::<i32>().iter();
    rows.map(|row| Some(row?.as_primitive::<Int32Type>().values().to_vec())).collect()
}

#[test]
fn pairs_are_one_sequence_and_the_longer_text_is_cut_first() {
    let transform = try_load(&pair("\"token_type_ids\""), TOKENIZER).unwrap();
    let names: Vec<String> =
        transform.output_fields().iter().map(|field| field.name().clone()).collect();
    assert_eq!(names, ["__forebay_tokens", "__forebay_token_types"]);
    let first = StringArray::from(vec![Some("1"), None, Some("2"), Some("1 2 3 4 5 6 7")]);
    let second = StringArray::from(vec![Some("2 3"), Some("3"), None, Some("8 9")]);
    let prepared = transform.apply(&[Arc::new(first), Arc::new(second)]).unwrap().columns;
    let ids = [Some(vec![1, 11, 2, 12, 13, 2]), None, None];
    assert_eq!(lists(&prepared[0])[..3], ids);
    assert_eq!(lists(&prepared[0])[3], Some(vec![1, 11, 12, 13, 2, 18, 19, 2]));
    let types = [Some(vec![0, 0, 0, 1, 1, 1]), None, None, Some(vec![0, 0, 0, 0, 0, 1, 1, 1])];
    assert_eq!(lists(&prepared[1]), types);

    // A model that takes no types has no column of them.
    let transform = try_load(&pair("\"attention_mask\""), TOKENIZER).unwrap();
    assert_eq!(transform.output_fields().len(), 1);
}

#[test]
fn texts_without_tokens_are_refused() {
    let mut tokenizer: serde_json::Value = serde_json::from_str(TOKENIZER).unwrap();
    tokenizer["post_processor"] = serde_json::Value::Null;
    let transform = try_load(TEXT, &tokenizer.to_string()).unwrap();
    let texts = |texts: &[&str]| -> ArrayRef { Arc::new(StringArray::from(texts.to_vec())) };
    assert!(transform.apply(&[texts(&["1 2"])]).is_ok());
    let error = transform.apply(&[texts(&["1 2", ""])]).unwrap_err().to_string();
    assert_eq!(error, "model 'm': input 'text': the text has no tokens; leave such rows out");
}

#[test]
fn a_prompt_comes_before_each_text_and_of_a_pair_before_the_first() {
    let prompts = "prompts = { digits = \"8 9 \" }";
    let load = |description: &str| {
        let text = description.replacen("version =", &format!("{prompts}\nversion ="), 1);
        let files: [(&str, &[u8]); 2] =
            [("model.pt", b""), ("tokenizer.json", TOKENIZER.as_bytes())];
        let folder = Folder::new(&text, &files);
        let (model, package) = open(folder.path());
        let options = ModelOptions { prompt: Some("digits".to_owned()), ..Default::default() };
        Tokenize::load(&model.with_options(&options).unwrap(), &package).unwrap()
    };
    let texts = |text: &str| -> ArrayRef { Arc::new(StringArray::from(vec![Some(text), None])) };
    let single = load(TEXT).apply(&[texts("1 2")]).unwrap().columns;
    assert_eq!(lists(&single[0]), [Some(vec![1, 18, 19, 11, 12, 2]), None]);
    let both = load(&pair("\"attention_mask\"")).apply(&[texts("1"), texts("2")]).unwrap().columns;
    assert_eq!(lists(&both[0]), [Some(vec![1, 18, 19, 11, 2, 12, 2]), None]);
}

#[test]
fn offsets_count_characters_and_leave_special_tokens_out() {
    let arguments = "\"token_starts\", \"token_ends\"";
    let description = TEXT.replace("\"attention_mask\"", arguments);
    let transform = try_load(&description, TOKENIZER).unwrap();
    let text = StringArray::from(vec!["ä 12  3"]);
    let prepared = transform.apply(&[Arc::new(text)]).unwrap().columns;
    assert_eq!(lists(&prepared[0]), [Some(vec![1, 3, 3, 13, 2])]);
    assert_eq!(lists(&prepared[1]), [Some(vec![-1, 0, 2, 6, -1])]);
    assert_eq!(lists(&prepared[2]), [Some(vec![-1, 1, 4, 7, -1])]);
}

#[test]
fn of_two_texts_each_token_says_which_it_is_of_and_in_which_word() {
    let arguments = "\"token_texts\", \"token_words\", \"token_starts\"";
    let transform = try_load(&pair(arguments), TOKENIZER).unwrap();
    let (first, second) = (StringArray::from(vec!["7 1"]), StringArray::from(vec!["ä 12"]));
    let prepared = transform.apply(&[Arc::new(first), Arc::new(second)]).unwrap().columns;
    let names = transform.output_fields();
    let of = |name: &str| {
        let at = names.iter().position(|field| field.name() == name).unwrap();
        lists(&prepared[at]).remove(0).unwrap()
    };
    assert_eq!(of("__forebay_tokens"), [1, 17, 11, 2, 3, 3, 2]);
    assert_eq!(of("__forebay_token_texts"), [-1, 0, 0, -1, 1, 1, -1]);
    assert_eq!(of("__forebay_token_words"), [-1, 0, 1, -1, 0, 1, -1]);
    assert_eq!(of("__forebay_token_starts"), [-1, 0, 2, -1, 0, 2, -1]);
}

#[test]
fn a_template_makes_one_text_of_two() {
    let description = pair("\"attention_mask\"")
        .replace("pad_id = 0", "pad_id = 0\ntemplate = \"9 {text} 8 {other} 7\"");
    let transform = try_load(&description, TOKENIZER).unwrap();
    let texts = |text: Option<&str>| -> ArrayRef { Arc::new(StringArray::from(vec![text])) };
    let prepared = transform.apply(&[texts(Some("1")), texts(Some("2"))]).unwrap().columns;
    assert_eq!(lists(&prepared[0]), [Some(vec![1, 19, 11, 18, 12, 17, 2])]);
    let prepared = transform.apply(&[texts(Some("1")), texts(None)]).unwrap().columns;
    assert_eq!(lists(&prepared[0]), [None]);
}

#[test]
fn texts_that_are_cut_are_counted() {
    let count =
        |transform: &Tokenize, columns: &[ArrayRef]| transform.apply(columns).unwrap().truncated;
    let texts =
        |texts: &[Option<&str>]| -> ArrayRef { Arc::new(StringArray::from(texts.to_vec())) };
    let single = try_load(TEXT, TOKENIZER).unwrap();
    // Six words and two special tokens are as many as it takes.
    let rows =
        [Some("1 2 3 4 5 6"), Some("1 2 3 4 5 6 7"), None, Some("1"), Some(&"1 ".repeat(99))];
    assert_eq!(count(&single, &[texts(&rows)]), 2);
    let left = TEXT.replace("pad_id = 0", "pad_id = 0\ntruncation = \"left\"");
    assert_eq!(count(&try_load(&left, TOKENIZER).unwrap(), &[texts(&rows)]), 2);
    let both = try_load(&pair("\"attention_mask\""), TOKENIZER).unwrap();
    let other = texts(&[Some("1"), Some("1"), Some("1"), Some("1 2 3 4"), Some("1")]);
    assert_eq!(count(&both, &[texts(&rows), other]), 3);
}

#[test]
fn tokens_that_the_model_has_no_embedding_for_are_named() {
    let description = TEXT.replace("pad_id = 0", "pad_id = 0\nvocabulary = 19");
    let transform = try_load(&description, TOKENIZER).unwrap();
    let texts = |text: &str| -> ArrayRef { Arc::new(StringArray::from(vec![text])) };
    assert!(transform.apply(&[texts("8 1")]).is_ok());
    let error = transform.apply(&[texts("8 9 1")]).unwrap_err().to_string();
    let expected = "model 'm': input 'text': the text has the token '9' (19), and the model knows 19 \
         tokens; take the tokenizer that it was trained with";
    assert_eq!(error, expected);
}

#[test]
fn empty_columns_give_empty_columns() {
    assert!(tokens(StringArray::from(Vec::<&str>::new())).is_empty());
}

#[test]
fn other_types_are_refused() {
    let transform = try_load(TEXT, TOKENIZER).unwrap();
    let error = transform.apply(&[Arc::new(Int64Array::from(vec![1]))]).unwrap_err();
    assert_eq!(error.to_string(), "model 'm': input 'text': found BIGINT, expected STRING");
}

#[test]
fn broken_tokenizers_are_named() {
    for (description, tokenizer, expected) in [
        (TEXT.to_owned(), "{", "tokenizer.json cannot be loaded"),
        (TEXT.replace("max_tokens = 8", "max_tokens = 2"), TOKENIZER, "2 special tokens"),
    ] {
        let message = try_load(&description, tokenizer).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }
}
