//! Keys of object stores: where they go, and that they do not come back out.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::thread;

use super::setup::Home;

/// A store that refuses all requests, and what it was sent.
fn store() -> (String, Arc<Mutex<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let heard = Arc::<Mutex<String>>::default();
    let hears = Arc::clone(&heard);
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut head = vec![0; 16 << 10];
            let length = stream.read(&mut head).unwrap_or(0);
            hears.lock().unwrap().push_str(&String::from_utf8_lossy(&head[..length]));
            stream
                .write_all(b"HTTP/1.1 403 No\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
                .ok();
        }
    });
    (address, heard)
}

/// A table with a key of its own on a store at this address.
fn table(address: &str, options: &str) -> String {
    format!(
        "CREATE EXTERNAL TABLE t (a INT) STORED AS CSV LOCATION 's3://bucket/t.csv' OPTIONS (
           'aws.region' 'eu-central-1', 'aws.endpoint' 'http://{address}',
           'aws.allow_http' 'true', {options});"
    )
}

const KEY: &str = "'aws.access_key_id' 'key-of-table', 'aws.secret_access_key' 'secret-of-table'";

#[test]
fn a_key_that_is_given_travels_with_no_secret_of_the_environment() {
    let home = Home::new();
    let own = format!("{KEY}, 'aws.session_token' 'token-of-table'");
    for (options, sends, hides) in [
        (KEY, "key-of-table", "token-of"),
        (own.as_str(), "x-amz-security-token: token-of-table", "token-of-server"),
    ] {
        let (address, heard) = store();
        let sql = table(&address, options) + "SELECT * FROM t";
        let mut command = home.command(&["shell", "-c", &sql]);
        command.env("AWS_ACCESS_KEY_ID", "key-of-server");
        command.env("AWS_SECRET_ACCESS_KEY", "secret-of-server");
        command.env("AWS_SESSION_TOKEN", "token-of-server");
        command.env("AWS_SERVER_SIDE_ENCRYPTION", "sse-c");
        command.env("AWS_SSE_CUSTOMER_KEY_BASE64", format!("{}=", "a".repeat(43)));
        assert!(!command.output().unwrap().status.success());
        let heard = heard.lock().unwrap();
        assert!(heard.contains(sends) && !heard.contains(hides), "{heard}");
        assert!(!heard.contains("server-side-encryption"), "{heard}");
    }
}

#[test]
fn half_a_key_is_refused() {
    let home = Home::new();
    for half in ["'aws.access_key_id' 'key'", "'aws.session_token' 'token'"] {
        // By the statement that has it.
        let error = home.run(&["shell", "-q", "-c", &table("127.0.0.1:1", half)]).fails();
        assert!(error.contains("go together"), "{error}");
    }
}

/// Whoever may read a table may ask what it is.
#[test]
fn a_key_does_not_come_back_out() {
    let home = Home::new();
    let (address, _) = store();
    let ask = [
        "SHOW CREATE TABLE t",
        "SELECT * FROM information_schema.views",
        "SELECT * FROM information_schema.tables",
        "SELECT * FROM information_schema.df_settings",
        "SHOW ALL",
        "EXPLAIN VERBOSE SELECT * FROM t",
        "SELECT * FROM t",
    ];
    let create = table(&address, KEY);
    for question in ask {
        let sql = format!("{create}{question}");
        let ran = home.run(&["shell", "-q", "--whole", "-c", &sql]);
        let said = ran.stdout + &ran.stderr;
        assert!(!said.is_empty() && !said.contains("secret-of-table"), "{question}: {said}");
    }
}
