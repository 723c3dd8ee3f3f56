//! The scripts as no caller of ours calls them: hostile arguments, late steps, a server that forgot.

use crate::{attempt, connect, held, load, sale};
use anyhow::Result;
use flashgate_servers::shared;
use flashgate_stock::{BucketLoad, ClaimAttempt, ClaimReply, LoadReply, Stock, StockConfig};
use fred::{
    clients::Client,
    interfaces::{ClientLike, HashesInterface, LuaInterface},
    types::{Builder, Value, config::Config},
};

const CLAIM: &str = include_str!("../../../../lua/claim.lua");
const LOAD: &str = include_str!("../../../../lua/load.lua");

/// A connection without our code.
async fn raw(url: &str) -> Result<Client> {
    let client = Builder::from_config(Config::from_url(url)?).build()?;
    client.init().await?;
    Ok(client)
}

fn key(prefix: &str, part: &str) -> String {
    format!("{{{prefix}:phones:0}}:{part}")
}

fn code(answer: &Value) -> Option<i64> {
    match answer {
        Value::Array(values) => values.first().and_then(Value::as_i64),
        other => other.as_i64(),
    }
}

#[tokio::test]
async fn no_spelling_of_a_quantity_mints_stock() -> Result<()> {
    let stock = connect("hostile").await?;
    load(&stock, 1, &[5]).await?;
    let raw = raw(&shared().await?.redis().url()).await?;
    let keys = ["stock", "buyers", "claims", "epoch"].map(|part| key("hostile", part));
    let huge = "9".repeat(400);
    let spellings =
        ["-1", "-0", "0", "1.5", "2.0", "1e0", "0x1", "nan", "inf", "-inf", "", " 1", "1 ", "01", "4", &huge];
    for quantity in spellings {
        let claim = attempt("b1", "k1", 1).claim_id.to_string();
        let arguments = ["1", &claim, "b1", quantity, "3", "0", "1000", "0", "trace"];
        let answer: Value = raw.eval(CLAIM, keys.to_vec(), arguments.map(String::from).to_vec()).await?;
        assert_eq!(code(&answer), Some(6), "{quantity:?}: {answer:?}");
    }
    let map = stock.stock_map(&sale(), 1).await?;
    assert_eq!((map.on_offer(), map.outbox()), (5, 0));
    Ok(())
}

#[tokio::test]
async fn a_server_that_forgot_the_scripts_is_told_them_again() -> Result<()> {
    // A Redis of its own: the others must not be flushed.
    let dir = tempfile::tempdir()?;
    let redis = flashgate_servers::Redis::start(dir.path()).await?;
    let stock = Stock::connect(&StockConfig { url: redis.url(), ..StockConfig::default() }).await?;
    load(&stock, 1, &[5]).await?;
    let a = attempt("b1", "k1", 1);
    let hold = held(stock.claim(&a, 0).await?);
    raw(&redis.url()).await?.script_flush(false).await?;
    assert!(matches!(stock.claim(&a, 0).await?, ClaimReply::Replay(receipt) if receipt.hold == hold));
    raw(&redis.url()).await?.script_flush(false).await?;
    held(stock.claim(&attempt("b2", "k1", 1), 0).await?);
    let map = stock.stock_map(&sale(), 1).await?;
    assert_eq!((map.on_offer(), map.outbox()), (3, 2), "the call that was told again moved one unit");
    redis.stop().await
}

#[tokio::test]
async fn a_late_finish_of_a_load_does_not_open_a_bucket_without_its_receipts() -> Result<()> {
    let stock = connect("late").await?;
    load(&stock, 1, &[1]).await?;
    let a = attempt("b1", "k1", 1);
    held(stock.claim(&a, 0).await?);
    let receipt = stock.receipts(&sale(), 1, &a.buyer).await?.remove(0).receipt.unwrap();
    let raw = raw(&shared().await?.redis().url()).await?;
    let keys = ["stock", "buyers", "epoch", "loading", "server"].map(|part| key("late", part));
    let step = async |arguments: &[&str]| {
        let arguments: Vec<String> = arguments.iter().map(|&text| text.into()).collect();
        let answer: Value = raw.eval(LOAD, keys.to_vec(), arguments).await?;
        Ok::<_, anyhow::Error>(code(&answer))
    };
    let receipts = ["receipts", "2", "b1", &receipt.to_string()];
    assert_eq!(step(&["begin", "2"]).await?, Some(0));
    assert_eq!(step(&receipts).await?, Some(0));
    // The first try's `finish` timed out at its caller, who begins again, and arrives only now.
    assert_eq!(step(&["begin", "2"]).await?, Some(0));
    assert_eq!(step(&["finish", "2", "4", "1"]).await?, Some(2));
    let second = ClaimAttempt { epoch: 2, ..attempt("b1", "k2", 1) };
    assert_eq!(stock.claim(&second, 0).await?, ClaimReply::NotLoaded { epoch: None });
    let again = BucketLoad { bucket: 0, stock: 4, receipts: vec![(a.buyer.clone(), receipt.clone())] };
    assert_eq!(stock.load(&sale(), 2, &[again]).await?, LoadReply::Loaded);
    assert_eq!(stock.claim(&second, 0).await?, ClaimReply::Already(receipt));
    Ok(())
}

#[tokio::test]
async fn a_load_of_thousands_of_receipts_is_read_back_whole() -> Result<()> {
    const BUYERS: usize = 2_345;
    let stock = connect("many").await?;
    load(&stock, 1, &[1]).await?;
    held(stock.claim(&attempt("b1", "k1", 1), 0).await?);
    let receipt = stock.receipts(&sale(), 1, &"b1".parse()?).await?.remove(0).receipt.unwrap();
    let receipts = (0..BUYERS).map(|n| (format!("buyer-{n}").parse().unwrap(), receipt.clone())).collect();
    let loads = [BucketLoad { bucket: 0, stock: 0, receipts }];
    assert_eq!(stock.load(&sale(), 2, &loads).await?, LoadReply::Loaded);
    let there: usize = raw(&shared().await?.redis().url()).await?.hlen(key("many", "buyers")).await?;
    assert_eq!((there, stock.held(&sale(), 1).await?.len()), (BUYERS, BUYERS));
    Ok(())
}
