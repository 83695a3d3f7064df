//! Passwords that are guessed, and users that are removed while a server runs.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;
use tonic::Code;

use super::process::{Server, basic, count, rest, text, user};

/// A server with ada and will, who have passwords.
fn server() -> (TempDir, PathBuf, Server) {
    let folder = tempfile::tempdir().unwrap();
    let users = folder.path().join("users.toml");
    for name in ["ada", "will"] {
        user(&["add", name, "--role", "admin"], &users, &format!("secret of {name}"));
    }
    let server = Server::start(folder.path(), &["--embedded", "--users", text(&users)]);
    (folder, users, server)
}

/// The most memory that a process has had, in KiB.
fn peak_kib(server: &Server) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", server.process.id())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    peak.trim().trim_end_matches(" kB").parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_guesses_at_once_are_few_that_are_heard_and_take_little_memory() {
    let (_folder, _, server) = server();
    let before = peak_kib(&server);
    let guess = |number: usize| {
        let server = &server;
        async move {
            let mut client = server.client(&basic("ada", &format!("guess {number}"))).await;
            client.greet().await.unwrap_err()
        }
    };
    let ends = futures::future::join_all((0..100).map(guess)).await;
    let heard = ends.iter().filter(|status| status.code() == Code::Unauthenticated).count();
    assert!((5..=6).contains(&heard), "{heard} of 100 guesses were checked");
    let rest = ends.iter().filter(|status| status.code() == Code::ResourceExhausted);
    assert_eq!(rest.count(), 100 - heard);
    let grown = peak_kib(&server).saturating_sub(before);
    assert!(grown < 200_000, "{grown} KiB");
    // Others are let in from the same address, and ada herself a little later.
    let mut will = server.client(&basic("will", "secret of will")).await;
    assert_eq!(count(&will.run("SELECT 1").await.unwrap()), 1);
    let mut ada = server.client(&basic("ada", "secret of ada")).await;
    while let Err(status) = ada.run("SELECT 1").await {
        assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
        assert!(status.message().contains("try again in"), "{status}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Some clients send their password with each call: it is not hashed each time, so that one who is
/// in stays in while others guess.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_that_was_right_is_remembered() {
    let (_folder, _, server) = server();
    let mut ada = server.client(&basic("ada", "secret of ada")).await;
    ada.run("SELECT 1").await.unwrap();
    let mut thief = server.client(&basic("ada", "guess")).await;
    let ends = [0; 10].map(|_| ());
    let mut codes = vec![];
    for () in ends {
        codes.push(thief.ask("SELECT 1").await.unwrap_err().code());
    }
    assert_eq!(codes.last(), Some(&Code::ResourceExhausted), "{codes:?}");
    ada.run("SELECT 1").await.unwrap();
    server.client(&basic("ada", "secret of ada")).await.run("SELECT 1").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_that_is_removed_is_out() {
    let (_folder, users, server) = server();
    let token = format!("Bearer {}", user(&["token", "program"], &users, ""));
    let session = server.client(&basic("ada", "secret of ada")).await.greet().await.unwrap();
    let mut program = server.client(&token).await;
    let mut ada = server.client(&session).await;
    program.run("SELECT 1").await.expect("a token that was made while the server ran");
    // It would take minutes.
    let long = "SELECT digest FROM ml_predict(TABLE t, MODEL slow, DESCRIPTOR(n))";
    let running = ada.begin(long).await.unwrap();
    user(&["remove", "ada"], &users, "");
    user(&["remove", "program"], &users, "");
    let ended = tokio::time::timeout(Duration::from_secs(60), rest(running)).await;
    let ended = ended.expect("the query of a removed user ends").unwrap_err();
    assert_eq!(ended.code(), Code::Cancelled, "{ended}");
    for (client, said) in [
        (&mut ada, "'ada' was removed or changed"),
        (&mut program, "the token is wrong"),
        (&mut server.client(&basic("ada", "secret of ada")).await, "the password is wrong"),
    ] {
        let refused = client.run("SELECT 1").await.unwrap_err();
        assert_eq!(refused.code(), Code::Unauthenticated);
        assert!(refused.message().contains(said), "{refused}");
    }
    let mut will = server.client(&basic("will", "secret of will")).await;
    let session = will.greet().await.unwrap();
    // Another role is another user.
    user(&["add", "will", "--role", "read"], &users, "secret of will");
    let refused = server.client(&session).await.run("SELECT 1").await.unwrap_err();
    assert!(refused.message().contains("'will' was removed or changed"), "{refused}");
    let refused = will.run("CREATE TABLE t AS SELECT 1").await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    // A damaged file lets nobody in who was out, and nobody out who was in.
    fs::write(&users, "[users.ada").unwrap();
    assert_eq!(count(&will.run("SELECT 1").await.unwrap()), 1);
    assert_eq!(ada.run("SELECT 1").await.unwrap_err().code(), Code::Unauthenticated);
    assert!(server.log().contains("users.toml"), "{}", server.log());
}
