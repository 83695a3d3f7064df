//! `KEY=VALUE`.

pub(super) fn key_value(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE, such as gpus=0.5")?;
    Ok((key.trim().to_owned(), value.trim().to_owned()))
}
