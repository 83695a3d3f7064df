//! What the shell says of functions.

use super::setup::Home;

#[test]
fn functions_are_listed_and_explained() {
    let home = Home::new();
    for (name, call, example) in [
        ("ml_predict", "ml_predict(MODEL model, input", "ml_predict(MODEL minilm, text)"),
        ("IMAGE_RESIZE", "image_resize(image, width, height [, filter])", "320, 240"),
        ("try_image_info", "try_image_info(bytes)", "SELECT try_image_info(bytes)"),
        ("read_files", "read_files(pattern [, on_error])", "FROM read_files("),
        ("cosine_distance", "cosine_distance(array1, array2)", "cosine_distance("),
    ] {
        let said = home.shell(&["-c", &format!("\\h {name}")]).succeeds();
        assert!(said.starts_with(call) && said.contains(example), "{name}: {said}");
    }
    let listed = home.shell(&["-c", "\\h"]).succeeds();
    assert!(listed.contains("  text_chunk(text, max_tokens, overlap [, model])"), "{listed}");
    let statement = home.shell(&["-c", "\\h select"]).succeeds();
    assert!(statement.contains("Syntax:"), "{statement}");
    let unknown = home.shell(&["-c", "\\h nothing"]).fails();
    assert!(unknown.starts_with("error: there is no function or statement 'nothing'"), "{unknown}");

    let shown = |sql: &str| home.shell(&["--format", "csv", "-c", sql]).succeeds();
    let images = shown("SHOW FUNCTIONS LIKE 'image%'");
    assert_eq!(images.lines().count(), 8, "{images}");
    assert!(images.contains("image_info,SCALAR,image_info(bytes),\"The format"), "{images}");
    for (name, kind) in [("read_files", "TABLE"), ("try_url_download", "SCALAR")] {
        let shown = shown(&format!("SHOW FUNCTIONS LIKE '{name}'"));
        assert!(shown.contains(&format!("{kind},\"{name}(")), "{shown}");
    }
    // DataFusion has no place for words about functions that are asynchronous.
    let silent = "SELECT routine_name AS name FROM information_schema.routines
        WHERE description IS NULL AND function_type = 'SCALAR' ORDER BY 1";
    assert_eq!(shown(silent), "name\ntry_url_download\nurl_download\n");
}

/// Those of our examples that need no file, no model and no network run as they are printed.
#[test]
fn examples_of_functions_run() {
    let home = Home::new();
    for name in [
        "row_hash",
        "octet_length",
        "text_chunk",
        "tensor_shape",
        "from_list",
        "to_list",
        "tensor_slice",
        "argmax",
        "top_k",
        "softmax",
        "try_from_list",
        "try_text_chunk",
    ] {
        let said = home.shell(&["-c", &format!("\\h {name}")]).succeeds();
        let example = said.lines().last().unwrap();
        assert!(!home.shell(&["-c", example]).succeeds().is_empty(), "{example}");
    }
}

#[test]
fn octet_length_counts_the_bytes_of_texts_and_binaries() {
    let home = Home::new();
    let sql = "SELECT octet_length('d\u{ed}a') AS a, octet_length(CAST('abc' AS BYTEA)) AS b,
        octet_length(NULL) AS n, octet_length(arrow_cast('abcd', 'BinaryView')) AS v,
        octet_length(arrow_cast('ab', 'Utf8View')) AS w, octet_length(12345) AS i, octet_length(x) AS x
        FROM (VALUES (CAST('12' AS BYTEA)), (NULL)) AS t(x)";
    let rows = home.shell(&["--format", "csv", "-c", sql]).succeeds();
    assert_eq!(rows, "a,b,n,v,w,i,x\n4,3,,4,2,5,2\n4,3,,4,2,5,\n");
}
