//! How much of a server one user can take, however many log-ins it has.

use std::time::Duration;

use tempfile::TempDir;
use tonic::Code;

use super::process::{Server, count, lines, text, user};

/// More rows than what waits on the way to a client.
const LONG: &str = "SELECT value FROM range(0, 10000000000)";

/// A server with these limits, and the tokens of two readers.
fn server(limits: &[&str]) -> (TempDir, Server, [String; 2]) {
    let folder = tempfile::tempdir().unwrap();
    let users = folder.path().join("users.toml");
    let tokens = ["rita", "will"]
        .map(|name| format!("Bearer {}", user(&["token", name, "--role", "read"], &users, "")));
    let arguments = [&["--embedded", "--users", text(&users)], limits].concat();
    let server = Server::start(folder.path(), &arguments);
    (folder, server, tokens)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_ins_that_do_not_read_leave_the_server_to_others_and_end() {
    let limits = ["--max-queries", "4", "--read-timeout", "5"];
    let (_folder, server, [rita, will]) = server(&limits);
    let mut sessions = [server.client(&rita).await, server.client(&rita).await];
    let (mut held, mut refused) = (vec![], vec![]);
    for at in 0..8 {
        match sessions[at % 2].begin(LONG).await {
            Ok(mut messages) => {
                messages.message().await.unwrap().unwrap();
                held.push(messages);
            }
            Err(status) => refused.push(status),
        }
    }
    // Another one, while none of these is read.
    let other = server.client(&will).await.run("SELECT 1").await;
    assert_eq!(count(&other.unwrap()), 1, "{} queries of one user are held", held.len());
    assert_eq!((held.len(), refused.len()), (3, 5));
    for status in refused {
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert!(status.message().starts_with("'rita' runs 3 queries"), "{status}");
    }
    // Nobody reads them: they end, and rita may run as many anew. A connection of which nothing is read
    // has no room for another answer.
    let (mut another, mut anew) = (server.client(&rita).await, vec![]);
    while anew.len() < held.len() {
        match another.begin(LONG).await {
            Ok(messages) => anew.push(messages),
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
    for mut messages in held {
        let end = loop {
            match messages.message().await {
                Ok(message) => assert!(message.is_some(), "all rows came"),
                Err(status) => break status,
            }
        };
        assert_eq!(end.code(), Code::DeadlineExceeded, "{end}");
        assert!(end.message().contains("nothing of this result was read for 5 s"), "{end}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_of_one_user_take_the_place_of_none_of_another() {
    let (_folder, server, [rita, will]) = server(&["--max-sessions", "3"]);
    let mut will = server.client(&will).await;
    will.run("SET forebay.byte_budget = '3MB'").await.unwrap();
    let mut sessions = vec![];
    for _ in 0..6 {
        let mut session = server.client(&rita).await;
        session.run("SELECT 1").await.unwrap();
        sessions.push(session);
    }
    let option = lines(&will.run("SHOW forebay.byte_budget").await.unwrap());
    assert!(option.contains("3000000"), "it is another session: {option}");
}
