//! The binary: tells its address, ends on a signal.

mod support;

use std::{
    io::{BufRead, BufReader},
    process::{Command, Stdio},
};
use support::{artifact, send};

#[tokio::test(flavor = "multi_thread")]
async fn it_prints_its_address_and_ends_on_sigterm() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_flashgate-edge"))
        .args(["--listen", "127.0.0.1:0", "--instances", "2", "--component"])
        .arg(artifact("empty"))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let url = lines.next().unwrap().unwrap().strip_prefix("listening ").unwrap().to_owned();
    assert_eq!(send(http::Request::get(url).body(Default::default()).unwrap()).await.status, 200);
    Command::new("kill").arg(child.id().to_string()).status().unwrap();
    assert!(child.wait().unwrap().success());
}
