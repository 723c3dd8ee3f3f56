//! The `flashgate` command; what it does is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    flashgate_ops::cli::main()
}
