//! What a sale's buckets are loaded with: at its creation, and by a rebuild.

use flashgate_ledger::{Cut, Standing};
use flashgate_shared::{
    BucketIndex, Epoch, HoldId,
    ids::{IdError, home_bucket},
    order::{OrderStatus, ReceiptState},
};
use flashgate_stock::{BucketLoad, Receipt};

/// The entry of a hold that the ledger does not know: its claim was declared lost without its message.
const NO_ENTRY: &str = "0-0";

/// Units over the buckets, as evenly as can be.
pub fn spread(units: u32, buckets: u16) -> Vec<BucketLoad> {
    let count = u32::from(buckets.max(1));
    let (each, more) = (units / count, units % count);
    (0..buckets.max(1))
        .map(|bucket| BucketLoad { bucket, stock: each + u32::from(u32::from(bucket) < more), receipts: Vec::new() })
        .collect()
}

/// The buckets as a cut wants them: its free units, and each buyer's last receipt in his home bucket.
pub fn rebuilt(cut: &Cut, buckets: u16) -> Result<Vec<BucketLoad>, IdError> {
    let mut loads = spread(cut.on_offer, buckets);
    for standing in &cut.standings {
        let home = home_bucket(&standing.buyer, buckets);
        if let Some(load) = loads.get_mut(usize::from(home)) {
            load.receipts.push((standing.buyer.clone(), receipt(standing, cut.epoch, home)?));
        }
    }
    Ok(loads)
}

fn receipt(standing: &Standing, epoch: Epoch, home: BucketIndex) -> Result<Receipt, IdError> {
    let state = match standing.status {
        OrderStatus::Reserved | OrderStatus::Paid => ReceiptState::Held,
        OrderStatus::Expired => ReceiptState::Released,
        OrderStatus::Lost => ReceiptState::Void,
    };
    let hold = match &standing.hold {
        Some(hold) => hold.clone(),
        None => HoldId::new(epoch, home, NO_ENTRY)?,
    };
    Ok(Receipt {
        state,
        claim_id: standing.claim_id,
        hold,
        quantity: standing.quantity,
        claimed_at_ms: standing.created_at_ms,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashgate_shared::ClaimId;

    #[test]
    fn the_total_is_spread_evenly_and_completely() {
        let stocks: Vec<u32> = spread(10, 4).iter().map(|b| b.stock).collect();
        assert_eq!(stocks, [3, 3, 2, 2]);
        let sum: u32 = spread(340, 7).iter().map(|b| b.stock).sum();
        assert_eq!(sum, 340);
        assert_eq!(spread(1, 3).iter().filter(|b| b.stock == 1).count(), 1);
    }

    #[test]
    fn a_rebuild_puts_each_buyers_last_receipt_into_his_home_bucket() {
        let standing = |n: u32, status| Standing {
            buyer: format!("buyer-{n}").parse().unwrap(),
            claim_id: ClaimId(uuid::Uuid::from_u128(u128::from(n))),
            status,
            hold: (n != 3).then(|| "4.1.5-6".parse().unwrap()),
            quantity: 2,
            created_at_ms: 9,
        };
        let states = [
            (0, OrderStatus::Reserved, ReceiptState::Held),
            (1, OrderStatus::Paid, ReceiptState::Held),
            (2, OrderStatus::Expired, ReceiptState::Released),
            (3, OrderStatus::Lost, ReceiptState::Void),
        ];
        let standings: Vec<_> = states.iter().map(|(n, status, _)| standing(*n, *status)).collect();
        let loads = rebuilt(&Cut { epoch: 7, on_offer: 11, standings, superseded: 0 }, 3).unwrap();
        assert_eq!(loads.iter().map(|load| load.stock).sum::<u32>(), 11);
        for (n, _, state) in states {
            let buyer = format!("buyer-{n}").parse().unwrap();
            let home = usize::from(home_bucket(&buyer, 3));
            let (_, receipt) = loads[home].receipts.iter().find(|(who, _)| *who == buyer).unwrap();
            assert_eq!((receipt.state, receipt.quantity, receipt.claimed_at_ms), (state, 2, 9));
            let hold = if n == 3 { format!("7.{home}.0-0") } else { "4.1.5-6".to_owned() };
            assert_eq!(receipt.hold.to_string(), hold);
        }
    }
}
