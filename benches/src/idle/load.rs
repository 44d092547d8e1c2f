//! The load: a static program that holds memory and a cached file, and touches both when it is asked.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use rollout_wire::v1;

use crate::yard::Client;

pub const MEMORY_BYTES: u64 = 64 << 20;
pub const CACHED_BYTES: u64 = 32 << 20;
/// The call that has everything touched.
pub const ASK: [&str; 2] = ["/load", "ask"];

const SOURCE: &str = r#"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
static unsigned long touch(unsigned long *memory, size_t words, char *buffer, size_t size) {
    unsigned long sum = 0;
    for (size_t i = 0; i < words; i += 512) sum += memory[i];
    int file = open("/workspace/cached", O_RDONLY);
    for (ssize_t got; (got = read(file, buffer, size)) > 0; ) sum += buffer[got - 1];
    close(file);
    return sum | 1;
}
int main(int count, char **words) {
    static char buffer[1 << 20];
    unsigned long sum = 0;
    if (count > 1 && !strcmp(words[1], "ask")) {
        int ask = open("/workspace/ask", O_WRONLY), answer = open("/workspace/answer", O_RDONLY);
        if (write(ask, "a", 1) != 1 || read(answer, &sum, sizeof sum) != sizeof sum) return 2;
        return sum ? 0 : 3;
    }
    unsigned long *memory = mmap(0, MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    unsigned long random = 88172645463325252UL;
    // Half of each page is noise, half is alike: as compressible as programs are.
    for (size_t i = 0; i < MEMORY / sizeof *memory; i++) {
        random ^= random << 13; random ^= random >> 7; random ^= random << 17;
        memory[i] = i % 512 < 256 ? random : i / 512;
    }
    int file = open("/workspace/cached", O_CREAT | O_WRONLY, 0644);
    for (size_t at = 0; at < CACHED; at += sizeof buffer)
        if (write(file, (char *)memory + at, sizeof buffer) != sizeof buffer) return 4;
    if (fsync(file)) return 5;
    if (mkfifo("/workspace/ask", 0600) || mkfifo("/workspace/answer", 0600)) return 6;
    puts("ready");
    fflush(stdout);
    int ask = open("/workspace/ask", O_RDWR), answer = open("/workspace/answer", O_RDWR);
    for (char byte; read(ask, &byte, 1) == 1; ) {
        sum = touch(memory, MEMORY / sizeof *memory, buffer, sizeof buffer);
        if (write(answer, &sum, sizeof sum) != sizeof sum) return 7;
    }
    return 0;
}
"#;

/// Into the image, as `/load`.
pub fn build(image: &Path) -> Result<()> {
    let source = image.parent().context("the image has a parent")?.join("load.c");
    std::fs::write(&source, SOURCE)?;
    let sizes = [format!("-DMEMORY={MEMORY_BYTES}UL"), format!("-DCACHED={CACHED_BYTES}UL")];
    let mut command = Command::new("cc");
    command.args(["-O2", "-static"]).args(sizes).arg("-o").arg(image.join("load")).arg(&source);
    let status = command.status().context("cc")?;
    ensure!(status.success(), "cc failed: {status}");
    Ok(())
}

/// Starts it; it goes on when the call that started it breaks off.
pub async fn start(client: &Client, sandbox: &str) -> Result<()> {
    let argv = v1::Argv { items: vec!["/load".to_owned()] };
    let start = v1::ExecStart {
        sandbox: sandbox.to_owned(),
        command: Some(v1::exec_start::Command::Argv(argv)),
        cwd: "/workspace".to_owned(),
        detach: true,
        ..v1::ExecStart::default()
    };
    let start = v1::ExecInput { input: Some(v1::exec_input::Input::Start(start)) };
    // Nothing more is sent: while a request goes on, dropping its answer does not end the call.
    let mut outputs = client.sandboxes.clone().exec(tokio_stream::once(start)).await?.into_inner();
    while let Some(output) = outputs.message().await? {
        match output.output {
            Some(v1::exec_output::Output::Stdout(text)) if text.starts_with(b"ready") => return Ok(()),
            Some(v1::exec_output::Output::Started(_)) => {}
            other => anyhow::bail!("the load does not start: {other:?}"),
        }
    }
    anyhow::bail!("the load does not start")
}
