//! The sale page in a real browser, as a person meets it: what it says, and what it does by itself.

use anyhow::Result;
use fantoccini::Locator;
use flashgate_shared::{SaleId, order::OrderStatus};
use flashgate_tests::{Browser, Shop, shop};

const HOUR_MS: i64 = 3_600_000;

/// Opens the sale's page.
async fn visit(browser: &Browser, shop: &Shop, sale: &SaleId) -> Result<()> {
    Ok(browser.client.goto(&format!("{}/s/{sale}", shop.stack.edge_url(0))).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_buys_reloads_and_pays() -> Result<()> {
    let shop = shop().await?;
    let sale = shop.create(&shop.sale("page-buy", 1)).await?;
    let browser = Browser::start().await?;
    visit(&browser, shop, &sale).await?;
    browser.text("h1", "Test sale page-buy").await?;
    browser.text("#button", "Buy now").await?;
    browser.text("#clock", "By the shop’s clock").await?;
    browser.click("#button").await?;
    browser.text("#answer", "You got it! Please pay by").await?;
    // A reload loses nothing: the page finds its claim.
    browser.client.refresh().await?;
    browser.text("#answer", "You got it! Please pay by").await?;
    browser.text("#pay-button", "199").await?;
    browser.click("#pay-button").await?;
    browser.text("#answer", "Paid. It is yours").await?;
    browser.stop().await?;
    assert_eq!(shop.audit(&sale).await?.count(OrderStatus::Paid), 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_person_hears_an_honest_no_and_a_unit_let_go_comes_back() -> Result<()> {
    let shop = shop().await?;
    let sale = shop.create(&shop.sale("page-sold-out", 1)).await?;
    let (first, second) = (Browser::start().await?, Browser::start().await?);
    visit(&first, shop, &sale).await?;
    first.click("#button").await?;
    first.text("#answer", "You got it!").await?;
    visit(&second, shop, &sale).await?;
    second.click("#button").await?;
    second.text("#answer", "Sold out").await?;
    second.text("#button", "try anyway").await?;
    first.click("#let-go").await?;
    first.text("#answer", "went back on sale").await?;
    // The page of the second person learns of it by itself.
    second.text("#button", "Buy now").await?;
    second.click("#button").await?;
    second.text("#answer", "You got it!").await?;
    first.stop().await?;
    second.stop().await?;
    assert_eq!(shop.audit(&sale).await?.count(OrderStatus::Reserved), 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_phone_clock_neither_opens_the_sale_nor_keeps_it_shut() -> Result<()> {
    let shop = shop().await?;
    // By the phone it is two hours later, by the shop the sale opens in an hour; and the reverse.
    for (name, opens_in_ms, wrong_by_ms, says) in
        [("early", HOUR_MS, 2 * HOUR_MS, "Not open yet"), ("late", -HOUR_MS, -2 * HOUR_MS, "Buy now")]
    {
        let mut config = shop.sale(&format!("page-clock-{name}"), 1);
        config.opens_at_ms += opens_in_ms;
        config.closes_at_ms += 2 * HOUR_MS;
        let sale = shop.create(&config).await?;
        let browser = Browser::start().await?;
        browser.set_clock_wrong_by(wrong_by_ms).await?;
        visit(&browser, shop, &sale).await?;
        browser.text("#clock", "By the shop’s clock").await?;
        browser.text("#button", says).await?;
        let open = browser.client.find(Locator::Css("#button")).await?.is_enabled().await?;
        assert_eq!(open, opens_in_ms < 0, "{name}");
        browser.stop().await?;
        shop.audit(&sale).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_countdown_ends_in_an_open_sale_without_a_reload() -> Result<()> {
    let shop = shop().await?;
    let mut config = shop.sale("page-countdown", 1);
    config.opens_at_ms += 64_000;
    let sale = shop.create(&config).await?;
    let browser = Browser::start().await?;
    visit(&browser, shop, &sale).await?;
    browser.text("#when", "Opens in").await?;
    browser.text("#button", "Buy now").await?;
    browser.click("#button").await?;
    browser.text("#answer", "You got it!").await?;
    browser.stop().await?;
    assert_eq!(shop.audit(&sale).await?.count(OrderStatus::Reserved), 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_sale_is_told_in_words() -> Result<()> {
    let shop = shop().await?;
    let browser = Browser::start().await?;
    visit(&browser, shop, &"page-nowhere".parse()?).await?;
    browser.text("h1", "There is no such sale").await?;
    browser.stop().await
}
