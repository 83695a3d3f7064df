//! Clients written in other languages: see `tests/clients`.

use std::process::Command;

use forebay_testkit::certificates::Authority;

#[test]
fn clients_that_are_not_ours() {
    let folder = tempfile::tempdir().unwrap();
    let identity = Authority::new(folder.path()).issue("server", &["127.0.0.1"]);
    let output = Command::new(".forebay/clients/bin/python")
        .args(["-m", "pytest", "--quiet", "-p", "no:cacheprovider", "tests/clients"])
        .env("FOREBAY_BINARY", env!("CARGO_BIN_EXE_forebay"))
        .env("FOREBAY_CERTIFICATE", &identity.certificate)
        .env("FOREBAY_CERTIFICATE_KEY", &identity.key)
        .env("FOREBAY_AUTHORITY", &identity.authority)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .unwrap_or_else(|error| panic!("{error}: run tools/setup clients"));
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
}
