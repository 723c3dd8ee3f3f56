//! The scripts on a real Redis: each return code, what hostile or late calls do, and random histories
//! against a model.

mod histories;
mod scripts;

use anyhow::Result;
use flashgate_servers::shared;
use flashgate_shared::{
    ClaimId, HoldId, SaleId,
    order::{ReceiptState, Release, ReleaseMode},
    trace::TraceId,
};
use flashgate_stock::{BucketLoad, ClaimAttempt, ClaimReply, LoadReply, ReleaseReply, Stock, StockConfig, StockError};
use nix::sys::signal::Signal;

const LIMIT: u32 = 3;

async fn connect(prefix: &str) -> Result<Stock> {
    let url = shared().await?.redis().url();
    Ok(Stock::connect(&StockConfig { url, prefix: prefix.into(), pool_size: 2, ..StockConfig::default() }).await?)
}

fn sale() -> SaleId {
    "phones".parse().unwrap()
}

fn attempt(buyer: &str, key: &str, quantity: u32) -> ClaimAttempt {
    let (sale, buyer) = (sale(), buyer.parse().unwrap());
    ClaimAttempt {
        claim_id: ClaimId::derive(&sale, &buyer, &key.parse().unwrap()),
        sale,
        epoch: 1,
        buyer,
        quantity,
        per_buyer_limit: LIMIT,
        second_try: false,
        now_ms: 1_000,
        trace_id: TraceId::from_random(1),
    }
}

async fn load(stock: &Stock, epoch: i64, units: &[u32]) -> Result<LoadReply> {
    let loads: Vec<_> = (0_u16..)
        .zip(units)
        .map(|(bucket, stock)| BucketLoad { bucket, stock: *stock, receipts: Vec::new() })
        .collect();
    Ok(stock.load(&sale(), epoch, &loads).await?)
}

fn held(reply: ClaimReply) -> HoldId {
    match reply {
        ClaimReply::Ok { hold, .. } => hold,
        other => panic!("not OK: {other:?}"),
    }
}

fn release(a: &ClaimAttempt, hold: &HoldId, units: u32, mode: ReleaseMode, epoch: i64) -> Release {
    Release {
        sale: a.sale.clone(),
        buyer: a.buyer.clone(),
        claim_id: a.claim_id,
        hold: hold.clone(),
        units,
        mode,
        epoch,
    }
}

#[tokio::test]
async fn each_return_code_of_claim_has_its_reply() -> Result<()> {
    let stock = connect("codes").await?;
    let first = attempt("b1", "k1", 2);
    assert_eq!(stock.claim(&first, 0).await?, ClaimReply::NotLoaded { epoch: None });
    load(&stock, 1, &[3]).await?;
    for quantity in [0, LIMIT + 1, u32::MAX] {
        assert_eq!(stock.claim(&attempt("b1", "k1", quantity), 0).await?, ClaimReply::BadQuantity, "{quantity}");
    }
    let ClaimReply::Ok { hold, left: 1 } = stock.claim(&first, 0).await? else { panic!("not OK with one left") };
    let ClaimReply::Replay(receipt) = stock.claim(&first, 0).await? else { panic!("no replay") };
    assert_eq!((receipt.state, &receipt.hold, receipt.quantity), (ReceiptState::Held, &hold, 2));
    assert!(matches!(stock.claim(&attempt("b1", "k2", 1), 0).await?, ClaimReply::Already(r) if r.hold == hold));
    assert_eq!(stock.claim(&attempt("b2", "k1", 2), 0).await?, ClaimReply::Empty { left: 1 });
    let newer = ClaimAttempt { epoch: 2, ..attempt("b3", "k", 1) };
    assert_eq!(stock.claim(&newer, 0).await?, ClaimReply::NotLoaded { epoch: Some(1) });
    assert_eq!(stock.stock_map(&sale(), 1).await?.on_offer(), 1, "only the one OK moved stock");
    Ok(())
}

#[tokio::test]
async fn a_unit_comes_back_once_and_only_for_its_hold() -> Result<()> {
    let stock = connect("once").await?;
    load(&stock, 1, &[1]).await?;
    let a = attempt("b1", "k1", 1);
    let hold = held(stock.claim(&a, 0).await?);
    let other = HoldId::new(1, 0, "1-1")?;
    let spent = ReleaseMode::Spent;
    assert_eq!(stock.release(&release(&a, &other, 1, spent, 1), 0).await?, ReleaseReply::NoChange);
    assert_eq!(stock.release(&release(&a, &hold, 1, spent, 2), 0).await?, ReleaseReply::Keep, "a row of a newer epoch");
    assert_eq!(stock.release(&release(&a, &hold, 1, spent, 0), 0).await?, ReleaseReply::Superseded);
    assert_eq!(stock.release(&release(&a, &hold, 1, spent, 1), 0).await?, ReleaseReply::Returned);
    assert_eq!(stock.release(&release(&a, &hold, 1, spent, 1), 0).await?, ReleaseReply::NoChange, "a repeat");
    assert_eq!(stock.stock_map(&sale(), 1).await?.on_offer(), 1);
    assert!(matches!(stock.claim(&a, 0).await?, ClaimReply::Replay(r) if r.state == ReceiptState::Released));
    assert!(matches!(stock.claim(&attempt("b1", "k2", 1), 0).await?, ClaimReply::AlreadyHad(_)));
    let again = ClaimAttempt { second_try: true, ..attempt("b1", "k2", 1) };
    let second = held(stock.claim(&again, 0).await?);
    assert_ne!(second, hold);
    assert_eq!(stock.release(&release(&a, &hold, 1, spent, 1), 0).await?, ReleaseReply::NoChange, "a late release");
    Ok(())
}

#[tokio::test]
async fn a_void_receipt_lets_another_key_in_but_not_its_own() -> Result<()> {
    let stock = connect("void").await?;
    load(&stock, 1, &[2]).await?;
    let a = attempt("b1", "k1", 2);
    let hold = held(stock.claim(&a, 0).await?);
    // The ledger had one unit fewer than the gate promised: one comes back, one never was.
    assert_eq!(stock.release(&release(&a, &hold, 1, ReleaseMode::Void, 1), 0).await?, ReleaseReply::Returned);
    assert_eq!(stock.stock_map(&sale(), 1).await?.on_offer(), 1);
    assert!(matches!(stock.claim(&a, 0).await?, ClaimReply::Replay(r) if r.state == ReceiptState::Void));
    held(stock.claim(&attempt("b1", "k2", 1), 0).await?);
    Ok(())
}

#[tokio::test]
async fn a_load_never_writes_over_its_own_or_a_newer_epoch() -> Result<()> {
    let stock = connect("load").await?;
    assert_eq!(load(&stock, 2, &[5, 5]).await?, LoadReply::Loaded);
    let hold = held(stock.claim(&ClaimAttempt { epoch: 2, ..attempt("b1", "k1", 1) }, 1).await?);
    for epoch in [1, 2] {
        assert_eq!(load(&stock, epoch, &[9, 9]).await?, LoadReply::Refused { bucket: 0, epoch: 2 });
    }
    assert_eq!(stock.stock_map(&sale(), 2).await?.on_offer(), 9);
    // A rebuild keeps the receipts it is given, and the outbox.
    let receipt = match stock.claim(&ClaimAttempt { epoch: 2, ..attempt("b1", "k1", 1) }, 1).await? {
        ClaimReply::Replay(receipt) => receipt,
        other => panic!("{other:?}"),
    };
    let loads = [0, 1].map(|bucket| BucketLoad {
        bucket,
        stock: 4,
        receipts: if bucket == 0 { vec![("b1".parse().unwrap(), receipt.clone())] } else { Vec::new() },
    });
    assert_eq!(stock.load(&sale(), 3, &loads).await?, LoadReply::Loaded);
    let receipts = stock.receipts(&sale(), 2, &"b1".parse()?).await?;
    assert_eq!(receipts.iter().map(|r| r.epoch).collect::<Vec<_>>(), [Some(3), Some(3)]);
    assert_eq!(receipts[0].receipt.as_ref().map(|r| &r.hold), Some(&hold));
    assert_eq!(receipts[1].receipt, None);
    let map = stock.stock_map(&sale(), 2).await?;
    assert_eq!((map.on_offer(), map.outbox(), map.epoch_agrees(3)), (8, 1, true));
    Ok(())
}

#[tokio::test]
async fn the_outbox_gives_back_what_was_claimed() -> Result<()> {
    let stock = connect("outbox").await?;
    load(&stock, 1, &[5]).await?;
    let a = attempt("b1", "k1", 2);
    let hold = held(stock.claim(&a, 0).await?);
    held(stock.claim(&attempt("b2", "k1", 1), 0).await?);
    assert!(stock.outbox(&sale(), 0, 60_000, 10).await?.is_empty(), "nothing is a minute old");
    let entries = stock.outbox(&sale(), 0, -1_000, 10).await?;
    assert_eq!(entries.len(), 2);
    assert_eq!((entries[0].claim_id, &entries[0].hold, entries[0].quantity), (a.claim_id, &hold, 2));
    assert_eq!(stock.outbox_delete(&sale(), std::slice::from_ref(&hold)).await?, 1);
    assert_eq!(stock.outbox_delete(&sale(), &[hold]).await?, 0, "a repeat");
    assert_eq!(stock.stock_map(&sale(), 1).await?.outbox(), 1);
    let mut held = stock.held(&sale(), 1).await?;
    held.sort_by(|a, b| a.buyer.cmp(&b.buyer));
    assert_eq!(held.iter().map(|h| (h.buyer.as_str(), h.receipt.quantity)).collect::<Vec<_>>(), [("b1", 2), ("b2", 1)]);
    Ok(())
}

#[tokio::test]
async fn a_silent_redis_leaves_the_outcome_unknown_and_a_repeat_finds_it() -> Result<()> {
    // A Redis of its own: the others must not be stopped.
    let dir = tempfile::tempdir()?;
    let redis = flashgate_servers::Redis::start(dir.path()).await?;
    let config = StockConfig { url: redis.url(), command_timeout_ms: 200, pool_size: 1, ..StockConfig::default() };
    let stock = Stock::connect(&config).await?;
    load(&stock, 1, &[5]).await?;
    let a = attempt("b1", "k1", 1);
    redis.process().signal(Signal::SIGSTOP)?;
    let answer = stock.claim(&a, 0).await;
    redis.process().signal(Signal::SIGCONT)?;
    assert!(matches!(answer, Err(StockError::Unknown(_))), "{answer:?}");
    let reply = std::sync::Mutex::new(None);
    flashgate_servers::until("the repeat is answered", std::time::Duration::from_secs(20), || async {
        let answer = stock.claim(&a, 0).await?;
        reply.lock().unwrap().replace(answer);
        Ok(true)
    })
    .await?;
    let reply = reply.into_inner().unwrap();
    assert!(matches!(reply, Some(ClaimReply::Ok { .. } | ClaimReply::Replay(_))), "{reply:?}");
    assert_eq!(stock.stock_map(&sale(), 1).await?.on_offer(), 4, "one unit, however often it was asked");
    Ok(())
}
