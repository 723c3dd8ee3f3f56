//! Names each asset by its content (FNV-1a, 64 bits), so that it can be cached for ever, writes those
//! names into the page, and compresses all of it once.

use flate2::{Compression, write::GzEncoder};
use std::{
    env,
    error::Error,
    fmt::Write as _,
    fs,
    io::{self, Write as _},
    path::Path,
};

/// The files that pages link to, and their media types.
const LINKED: [(&str, &str); 2] =
    [("sale.css", "text/css; charset=utf-8"), ("sale.js", "text/javascript; charset=utf-8")];

fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// Gzip (RFC 1952), as small as it gets; its head holds neither name nor time: the same bytes each time.
fn gzip(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes)?;
    encoder.finish()
}

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=assets");
    let out = env::var("OUT_DIR")?;
    let (mut page, mut refusal) = (fs::read_to_string("assets/sale.html")?, fs::read_to_string("assets/refusal.html")?);
    let mut code = String::from("static LINKED: &[Asset] = &[\n");
    for (name, content_type) in LINKED {
        let source = Path::new("assets").join(name);
        let bytes = fs::read(&source)?;
        let hash = format!("{:016x}", fnv1a(&bytes));
        fs::write(Path::new(&out).join(format!("{name}.gz")), gzip(&bytes)?)?;
        let (stem, extension) = name.rsplit_once('.').ok_or("an asset needs an extension")?;
        let path = format!("/assets/{stem}.{hash}.{extension}");
        for text in [&mut page, &mut refusal] {
            *text = text.replace(&format!("/assets/{name}"), &path);
        }
        writeln!(
            code,
            "Asset {{ path: {path:?}, content_type: {content_type:?}, body: include_bytes!({:?}), gzip: include_bytes!(concat!(env!(\"OUT_DIR\"), \"/{name}.gz\")), etag: \"\\\"{hash}\\\"\", gzip_etag: \"\\\"{hash}-gzip\\\"\", immutable: true }},",
            fs::canonicalize(source)?
        )?;
    }
    code.push_str("];\n");
    fs::write(Path::new(&out).join("sale.html"), &page)?;
    fs::write(Path::new(&out).join("sale.html.gz"), gzip(page.as_bytes())?)?;
    fs::write(Path::new(&out).join("refusal.html"), &refusal)?;
    writeln!(
        code,
        "static PAGE: Asset = Asset {{ path: \"/s/\", content_type: \"text/html; charset=utf-8\", body: include_bytes!(concat!(env!(\"OUT_DIR\"), \"/sale.html\")), gzip: include_bytes!(concat!(env!(\"OUT_DIR\"), \"/sale.html.gz\")), etag: \"\\\"{hash:016x}\\\"\", gzip_etag: \"\\\"{hash:016x}-gzip\\\"\", immutable: false }};",
        hash = fnv1a(page.as_bytes())
    )?;
    fs::write(Path::new(&out).join("assets.rs"), code)?;
    Ok(())
}
