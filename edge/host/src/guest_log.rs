//! What the component prints becomes log lines.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};
use tokio::io::AsyncWrite;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};

/// A longer line is cut into several.
const MAX_LINE_BYTES: usize = 4 << 10;

/// One of the component's output streams.
#[derive(Clone, Copy, Debug)]
pub(crate) enum GuestLog {
    Stdout,
    Stderr,
}

impl IsTerminal for GuestLog {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for GuestLog {
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(Lines { from: *self, line: Vec::new() })
    }
}

struct Lines {
    from: GuestLog,
    line: Vec<u8>,
}

impl Lines {
    fn push(&mut self, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|b| *b == b'\n') {
            for chunk in piece.chunks(MAX_LINE_BYTES) {
                self.line.extend_from_slice(chunk);
                if chunk.ends_with(b"\n") || self.line.len() >= MAX_LINE_BYTES {
                    self.emit();
                }
            }
        }
    }

    fn emit(&mut self) {
        let line = String::from_utf8_lossy(&self.line);
        let line = line.trim_end();
        if !line.is_empty() {
            match self.from {
                GuestLog::Stdout => tracing::info!(target: "component", "{line}"),
                GuestLog::Stderr => tracing::warn!(target: "component", "{line}"),
            }
        }
        self.line.clear();
    }
}

impl AsyncWrite for Lines {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.push(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        self.emit();
    }
}
