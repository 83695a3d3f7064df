//! The command itself.

use super::setup::Home;

#[test]
fn without_a_command_the_help_is_printed() {
    let ran = Home::new().run(&[]);
    assert_eq!(ran.status, Some(2));
    for command in ["shell", "model", "doctor"] {
        assert!(ran.stderr.contains(command), "{}", ran.stderr);
    }
}

/// What a report of a defect needs.
#[test]
fn the_version_names_what_the_binary_was_made_of() {
    let home = Home::new();
    let short = home.run(&["-V"]);
    assert_eq!(short.stdout, format!("forebay {}\n", env!("CARGO_PKG_VERSION")));
    let long = home.run(&["--version"]).stdout;
    let doctor = home.run(&["doctor"]).stdout;
    assert!(long.starts_with(&short.stdout), "{long}");
    for line in long.lines().skip(1) {
        assert!(doctor.contains(line), "{line}: {doctor}");
    }
    for (part, version) in [
        ("DataFusion", datafusion::DATAFUSION_VERSION),
        ("Ballista", ballista_core::BALLISTA_VERSION),
        ("arrow", arrow::ARROW_VERSION),
        ("libtorch", "2.11.0"),
        ("onnxruntime", "1.31.1"),
        ("commit", ""),
        ("profile", ""),
    ] {
        assert!(long.contains(&format!("\n{part:<12}{version}")), "{part} {version}: {long}");
    }
}

/// Options are under the heading of what they are about.
#[test]
fn the_help_of_serve_has_a_section_for_each_door() {
    let help = Home::new().run(&["serve", "--help"]).stdout;
    let place = |text: &str| help.find(text).unwrap_or_else(|| panic!("{text}: {help}"));
    let places = [
        "--worker-timeout",
        "--insecure",
        "\nArrow Flight SQL:",
        "--users",
        "--session-timeout",
        "\nEncryption within a cluster:",
        "--tls-cert",
        "\nWhat a worker offers:",
        "--memory-limit",
    ];
    assert!(places.map(place).is_sorted(), "{help}");
}
