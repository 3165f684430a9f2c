"""Answers written by hand for passages of data/knowledge, as an agent or a small language model would put them.

Each is a document's path, a correct answer and, where there is one, the same answer with one error planted by hand.
"""

WRITTEN: tuple[tuple[str, str, str], ...] = (
    (
        "accounts/change-email-phone-addresses.md",
        "You can save up to 10 delivery addresses and choose one of them as your default.",
        "You can save up to 12 delivery addresses and choose one of them as your default.",
    ),
    (
        "accounts/change-email-phone-addresses.md",
        "No, PO boxes and parcel lockers aren't possible. The driver needs a person or a safe place.",
        "Yes, PO boxes and parcel lockers are possible. The driver needs a person or a safe place.",
    ),
    (
        "accounts/change-email-phone-addresses.md",
        "We send a confirmation link to your new address, and it works for 24 hours.",
        "We send a confirmation link to your new address, and it works for 24 days.",
    ),
    (
        "accounts/create-account-sign-in-reset-password.md",
        "Your password must have at least 10 characters, with at least one letter and one number.",
        "Your password must have at least 8 characters, with at least one letter and one number.",
    ),
    (
        "accounts/create-account-sign-in-reset-password.md",
        "Click Forgot password? on the sign-in page and enter your email address. The link we send you is valid "
        "for 60 minutes.",
        "Click Forgot password? on the sign-in page and enter your email address. The link we send you is valid "
        "for 15 minutes.",
    ),
    (
        "accounts/create-account-sign-in-reset-password.md",
        "The message A-09 means that we locked your account because of unusual activity. Please call +353 1 555 "
        "0142, as we can't lift this lock in the chat.",
        "The message A-09 means that we locked your account because of unusual activity. Please call +353 1 555 "
        "0124, as we can't lift this lock in the chat.",
    ),
    (
        "accounts/larkmoor-circle-points.md",
        "Your points expire 24 months after the day you earned them, and the oldest go first.",
        "Your points expire 18 months after the day you earned them, and the oldest go first.",
    ),
    (
        "accounts/larkmoor-circle-points.md",
        "400 points get you a voucher of EUR 10.",
        "400 points get you a voucher of EUR 20.",
    ),
    (
        "accounts/larkmoor-circle-points.md",
        "You don't get any points for delivery charges or for buying gift cards.",
        "You get points for delivery charges and for buying gift cards.",
    ),
    (
        "accounts/newsletter-and-notifications.md",
        "The newsletter The Kitchen Table comes every second Thursday and can be switched off.",
        "The newsletter The Kitchen Table comes every second Tuesday and can be switched off.",
    ),
    (
        "accounts/newsletter-and-notifications.md",
        "No, safety and recall notices can't be switched off.",
        "Yes, safety and recall notices can be switched off.",
    ),
    (
        "business/bulk-orders-and-quotes.md",
        "Please ask for a quote if you need more than 6 pieces of an item or if your order is above EUR 10,000.",
        "Please ask for a quote if you need more than 6 pieces of an item or if your order is above EUR 5,000.",
    ),
    (
        "business/bulk-orders-and-quotes.md",
        "A pallet costs EUR 55 within Ireland, and delivery is free from EUR 2,500.",
        "A pallet costs EUR 55 within Ireland, and delivery is free from EUR 3,500.",
    ),
    (
        "business/opening-a-business-account.md",
        "Business orders don't collect Larkmoor Circle points, and you can't use Tandem Pay for them.",
        "Business orders collect Larkmoor Circle points, and you can't use Tandem Pay for them.",
    ),
    (
        "gift-cards/buying-gift-cards.md",
        "You can buy gift cards for any full euro amount between EUR 10 and EUR 500. They are valid for five years.",
        "You can buy gift cards for any full euro amount between EUR 10 and EUR 500. They are valid for three years.",
    ),
    (
        "gift-cards/buying-gift-cards.md",
        "If you chose a date, the card is sent at 9:00 Irish time on that day.",
        "If you chose a date, the card is sent at 11:00 Irish time on that day.",
    ),
    (
        "gift-cards/using-a-gift-card-and-balance.md",
        "The PIN is under the silver strip on the back of a plastic card. If it's a digital card, you find the "
        "number and the PIN in the email.",
        "The PIN is under the silver strip on the back of a plastic card. If it's a digital card, you don't find "
        "the number and the PIN in the email.",
    ),
    (
        "gift-cards/using-a-gift-card-and-balance.md",
        "After 5 wrong attempts your card is blocked for 24 hours and you see the message G-22.",
        "After 5 wrong attempts your card is blocked for 24 hours and you see the message G-24.",
    ),
    (
        "orders/change-or-cancel-order.md",
        "You can cancel your order free of charge until it is packed, which is usually 2 hours after you ordered.",
        "You can cancel your order free of charge until it is packed, which is usually 4 hours after you ordered.",
    ),
    (
        "orders/change-or-cancel-order.md",
        "Unfortunately, we cannot merge two orders, even if they were placed a minute apart.",
        "Yes, we can merge two orders, even if they were placed a minute apart.",
    ),
    (
        "orders/change-or-cancel-order.md",
        "Orders placed after 20:00 aren't packed before 6:00 on the next working day.",
        "Orders placed after 18:00 aren't packed before 6:00 on the next working day.",
    ),
    (
        "orders/damaged-on-arrival.md",
        "Please report the damage within 7 days of delivery. Take three photos: the whole box from outside, the "
        "packing inside and the damage from close up.",
        "Please report the damage within 14 days of delivery. Take three photos: the whole box from outside, the "
        "packing inside and the damage from close up.",
    ),
    (
        "orders/damaged-on-arrival.md",
        "If there is only a visible mark and it works perfectly, you can choose a new item, or keep it and get "
        "15% back.",
        "If there is only a visible mark and it works perfectly, you can choose a new item, or keep it and get "
        "25% back.",
    ),
    (
        "orders/order-status-and-tracking.html",
        "On the day of delivery, Corrib Couriers shows you a 2-hour window by 9:30 in the morning.",
        "On the day of delivery, Shannon Couriers shows you a 2-hour window by 9:30 in the morning.",
    ),
    (
        "orders/order-status-and-tracking.html",
        "Digital gift cards and small spare parts sent by letter don't have a tracking number.",
        "Digital gift cards and small spare parts sent by letter have a tracking number.",
    ),
    (
        "orders/placing-an-order.md",
        "The limit for gift cards is 4 per order.",
        "The limit for gift cards is 6 per order.",
    ),
    (
        "orders/placing-an-order.md",
        "Gift wrapping costs €3.90 per item and comes with a card for up to 200 characters.",
        "Gift wrapping costs €3.50 per item and comes with a card for up to 200 characters.",
    ),
    (
        "orders/placing-an-order.md",
        "No, you don't need an account. You can check out as a guest with your email address and mobile number.",
        "Yes, you need an account. You can't check out as a guest with your email address and mobile number.",
    ),
    (
        "orders/placing-an-order.md",
        "You can order by phone Monday to Friday from 8:00 to 20:00 and on Saturday from 9:00 to 17:00.",
        "You can order by phone Monday to Friday from 8:00 to 20:00 and on Sunday from 9:00 to 17:00.",
    ),
    (
        "payments/invoices-and-vat-receipts.md",
        "You can request a full VAT invoice up to 60 days after your purchase.",
        "You can request a full VAT invoice up to 90 days after your purchase.",
    ),
    (
        "payments/payment-declined.html",
        "P-120 means that the confirmation in your banking app was not finished within 5 minutes.",
        "P-133 means that the confirmation in your banking app was not finished within 5 minutes.",
    ),
    (
        "payments/payment-methods.md",
        "You can pay with PayPal online for orders up to EUR 3,000, but not in our stores.",
        "You can pay with PayPal online for orders up to EUR 1,500, but not in our stores.",
    ),
    (
        "payments/payment-methods.md",
        "We don't accept cash on delivery, and we don't take cheques or cryptocurrency.",
        "We accept cash on delivery, and we don't take cheques or cryptocurrency.",
    ),
    (
        "privacy/your-data-export-and-deletion.md",
        "Go to My account > Privacy and choose Export my data. You will get the file within 30 days at the latest.",
        "Go to My account > Security and choose Export my data. You will get the file within 30 days at the latest.",
    ),
    (
        "product-care/cast-iron-care.md",
        "Heat the oven to 220 °C and bake the pan upside down on the middle shelf for 60 minutes.",
        "Heat the oven to 180 °C and bake the pan upside down on the middle shelf for 60 minutes.",
    ),
    (
        "product-care/cast-iron-care.md",
        "The CC-26 weighs 5.4 kg and the CC-30 weighs 7.1 kg, both with the lid.",
        "The CC-26 weighs 7.1 kg and the CC-30 weighs 5.4 kg, both with the lid.",
    ),
    (
        "product-care/descale-km-210.md",
        "Please don't use vinegar, because it makes the rubber seal of the drip valve swell.",
        "Please use vinegar, because it makes the rubber seal of the drip valve swell.",
    ),
    (
        "product-care/descale-km-450.md",
        "With hard water, which is setting 3, the message DESCALE appears after 40 litres, roughly every 7 weeks.",
        "With hard water, which is setting 3, the message DESCALE appears after 70 litres, roughly every 7 weeks.",
    ),
    (
        "product-care/wash-inis-duvet.md",
        "A double duvet with 10.5 tog needs a machine with a 9 kg drum.",
        "A double duvet with 10.5 tog needs a machine with an 11 kg drum.",
    ),
    (
        "product-care/wash-inis-duvet.md",
        "You can wash the Inis at 40 °C on the delicate or duvet program, without fabric softener or bleach.",
        "You can wash the Aran at 40 °C on the delicate or duvet program, without fabric softener or bleach.",
    ),
    (
        "returns/christmas-returns.md",
        "Everything you bought from 1 November to 24 December can be returned until 31 January.",
        "Everything you bought from 1 November to 24 December can be returned until 31 March.",
    ),
    (
        "returns/christmas-returns.md",
        "Christmas lights and decorations can only be returned until 6 January.",
        "Christmas lights and decorations can only be returned until 16 January.",
    ),
    (
        "returns/exchanges.md",
        "If the new item costs more, we'll email you a link to pay the difference, which is valid for 3 days.",
        "If the new item costs more, we'll email you a link to pay the difference, which is valid for 3 weeks.",
    ),
    (
        "returns/non-returnable-items.md",
        "Opened pillows can't be returned for hygiene reasons.",
        "Opened pillows can be returned for hygiene reasons.",
    ),
    (
        "returns/refund-times.html",
        "A refund to American Express takes up to 7 working days and may appear on your next statement.",
        "A refund to Mastercard takes up to 7 working days and may appear on your next statement.",
    ),
    (
        "returns/return-in-store.md",
        "You can return items in any of our nine stores free of charge, no matter where you bought them.",
        "You can return items in any of our seven stores free of charge, no matter where you bought them.",
    ),
    (
        "returns/return-online-order.md",
        "A return at a Corrib pick-up point costs EUR 3.50 and is free for Circle members. A collection from your "
        "door costs EUR 6.50, or EUR 3.00 for Circle members.",
        "A return at a Corrib pick-up point costs EUR 3.50 and is free for Circle members. A collection from your "
        "door costs EUR 3.50, or EUR 3.00 for Circle members.",
    ),
    (
        "returns/returns-policy.md",
        "You have 30 days from delivery to return your item, or 45 days if you are a Larkmoor Circle member.",
        "You have 30 days from delivery to return your item, or 40 days if you are a Larkmoor Circle member.",
    ),
    (
        "returns/returns-policy.md",
        "The original packaging is not required, but all accessories must be included.",
        "The original packaging is required, but all accessories must be included.",
    ),
    (
        "shipping/delivery-costs-and-times.md",
        "Standard delivery costs EUR 4.95 and is free from EUR 60. It takes 2 to 4 working days.",
        "Standard delivery costs EUR 4.95 and is free from EUR 60. It takes 4 to 7 working days.",
    ),
    (
        "shipping/delivery-costs-and-times.md",
        "The last order date for Standard delivery before Christmas is 18 December.",
        "The last order date for Standard delivery before Christmas is 23 December.",
    ),
    (
        "shipping/express-delivery.md",
        "If you order on Friday before 14:00, your Express parcel arrives on Monday.",
        "If you order on Friday before 14:00, your Express parcel arrives on Tuesday.",
    ),
    (
        "shipping/large-items-two-person-delivery.md",
        "The team doesn't connect gas, change electrical wiring or drill.",
        "The team connects gas, but it doesn't change electrical wiring or drill.",
    ),
    (
        "shipping/northern-ireland-gb-eu.html",
        "A parcel to Great Britain costs EUR 12.95 and takes 5 to 8 working days including customs.",
        "A parcel to Great Britain costs EUR 9.95 and takes 5 to 8 working days including customs.",
    ),
    (
        "stores/click-and-collect.md",
        "We keep your order for 7 days after the Ready to collect message, and you can extend this once by 3 days.",
        "We keep your order for 7 days after the Ready to collect message, and you can extend this once by 5 days.",
    ),
    (
        "stores/opening-hours-and-services.html",
        "On Sundays our store in Cork is open from 12:30 to 17:30.",
        "On Sundays our store in Cork is open from 12:30 to 18:00.",
    ),
    (
        "stores/opening-hours-and-services.html",
        "The store in Sligo is closed on Sundays.",
        "The store in Sligo is open on Sundays.",
    ),
    (
        "troubleshooting/km-450-error-codes.html",
        "E08 means that the machine is locked because descaling is overdue. Run the descaling program to the end; "
        "a restart won't clear this code.",
        "E06 means that the machine is locked because descaling is overdue. Run the descaling program to the end; "
        "a restart won't clear this code.",
    ),
    (
        "troubleshooting/sv-3-battery.md",
        "No, the battery of the SV-3 can't be removed by you. Our workshop replaces it for EUR 45 outside warranty.",
        "No, the battery of the SV-3 can't be removed by you. Our workshop replaces it for EUR 69 outside warranty.",
    ),
    (
        "warranty/larkmoor-care.md",
        "Larkmoor Care costs EUR 39 per appliance and adds three years to the standard 2-year warranty.",
        "Larkmoor Care costs EUR 39 per appliance and adds two years to the standard 2-year warranty.",
    ),
    (
        "warranty/warranty-terms.md",
        "Cast-iron cookware such as the CC-26 is covered for 10 years.",
        "Cast-iron cookware such as the CC-26 is covered for 5 years.",
    ),
    (
        "warranty/warranty-terms.md",
        "Wear parts such as filters and brushes are not covered by the warranty.",
        "Wear parts such as filters and brushes are covered by the warranty.",
    ),
)
"""Close to the words of the passages."""

PARAPHRASED: tuple[tuple[str, str, str], ...] = (
    (
        "accounts/change-email-phone-addresses.md",
        "Open My account > My details, choose Change next to your email address and enter the new one. You then "
        "have to confirm it with the link we send to the new address.",
        "Open My account > My orders, choose Change next to your email address and enter the new one.",
    ),
    (
        "accounts/change-email-phone-addresses.md",
        "Your date of birth can only be entered once. If it is wrong, please write to help@larkmoor.example.",
        "Your date of birth can only be entered once. If it is wrong, please write to privacy@larkmoor.example.",
    ),
    (
        "accounts/create-account-sign-in-reset-password.md",
        "You have to be 16 or older to open an account, and you can only have one account per email address.",
        "You have to be 18 or older to open an account, and you can only have one account per email address.",
    ),
    (
        "accounts/larkmoor-circle-points.md",
        "A household can pool its points: up to 4 people with the same delivery address share one balance.",
        "A household can pool its points: up to 6 people with the same delivery address share one balance.",
    ),
    (
        "accounts/larkmoor-circle-points.md",
        "With 800 points you can get a EUR 20 voucher, which is valid for 6 months.",
        "With 800 points you can get a EUR 50 voucher, which is valid for 6 months.",
    ),
    (
        "accounts/newsletter-and-notifications.md",
        "New subscribers receive a code for EUR 5 off their first order of EUR 50 or more. It's valid for 30 days.",
        "New subscribers receive a code for EUR 5 off their first order of EUR 50 or more. It's valid for 60 days.",
    ),
    (
        "business/bulk-orders-and-quotes.md",
        "A quote is valid for 21 days. The prices are fixed during that time, but the stock isn't reserved until "
        "you accept.",
        "A quote is valid for 21 days. The prices are not fixed during that time.",
    ),
    (
        "business/opening-a-business-account.md",
        "No, a private account cannot be turned into a business account. Please open a new one with a different "
        "email address.",
        "Yes, a private account can be turned into a business account.",
    ),
    (
        "gift-cards/buying-gift-cards.md",
        "A gift card sent by post costs EUR 1.50 for delivery and takes 2 to 5 working days. The digital card "
        "usually arrives within 15 minutes.",
        "A gift card sent by post costs EUR 1.50 for delivery and takes 2 to 5 working days. The digital card "
        "usually arrives within 15 hours.",
    ),
    (
        "gift-cards/using-a-gift-card-and-balance.md",
        "Yes, up to 5 gift cards can be used in one order. What you don't spend stays on the card.",
        "Yes, up to 4 gift cards can be used in one order. What you don't spend is lost.",
    ),
    (
        "gift-cards/using-a-gift-card-and-balance.md",
        "If your card is lost or stolen and you have the receipt or order number, we can block it and move the "
        "remaining money to a new card.",
        "If your card is lost or stolen and you have the receipt or order number, we cannot block it.",
    ),
    (
        "orders/change-or-cancel-order.md",
        "After packing, you can no longer change the quantity or colour.",
        "After packing, you can still change the quantity or colour.",
    ),
    (
        "orders/change-or-cancel-order.md",
        "Personalised items can only be cancelled within 30 minutes because we start engraving right away.",
        "Personalised items can be cancelled within 60 minutes because we start engraving right away.",
    ),
    (
        "orders/damaged-on-arrival.md",
        "No, a bare spot of up to 3 mm on the rim of a CC-26 is not damage. It comes from the firing hook.",
        "Yes, a bare spot of up to 3 mm on the rim of a CC-26 is damage. It comes from the firing hook.",
    ),
    (
        "orders/missing-or-wrong-items.md",
        "If the wrong item is worth less than EUR 15 you can keep it.",
        "If the wrong item is worth less than EUR 25 you can keep it.",
    ),
    (
        "orders/missing-or-wrong-items.md",
        "Please tell us within 14 days of delivery and we will put it right at our cost.",
        "Please tell us within 7 days of delivery and we will put it right at our cost.",
    ),
    (
        "orders/order-status-and-tracking.html",
        "Your tracking number begins with the letters CC, followed by 11 digits.",
        "Your tracking number begins with the letters CC, followed by 13 digits.",
    ),
    (
        "orders/placing-an-order.md",
        "The smallest order is EUR 5, not counting delivery.",
        "The smallest order is EUR 15, not counting delivery.",
    ),
    (
        "orders/placing-an-order.md",
        "If the date of a pre-order moves by more than 14 days, we will email you. You can then wait or cancel "
        "free of charge.",
        "If the date of a pre-order moves by more than 14 days, we will email you. You can then not cancel free "
        "of charge.",
    ),
    (
        "payments/invoices-and-vat-receipts.md",
        "Your VAT receipt is emailed as a PDF on the day the order is dispatched. You can also download it under "
        "My orders.",
        "Your VAT receipt is emailed as a PDF on the day the order is placed. You can also download it under My "
        "account.",
    ),
    (
        "payments/payment-declined.html",
        "Error P-300 means too many attempts. Please wait 60 minutes and try again.",
        "Error P-300 means too many attempts. Please wait 30 minutes and try again.",
    ),
    (
        "payments/payment-methods.md",
        "Bank transfer is available for orders of EUR 500 or more. Please transfer the full amount within 5 "
        "working days.",
        "Bank transfer is available for orders of EUR 500 or more. Please transfer the full amount within 5 days.",
    ),
    (
        "payments/payment-methods.md",
        "You can pay cash in our stores for amounts up to EUR 1,000, but not online.",
        "You can pay cash in our stores for amounts up to EUR 3,000, but not online.",
    ),
    (
        "privacy/cookies-security-and-phishing.html",
        "No, that was not us. We will never ask for your password or a code from your bank.",
        "Yes, we ask for your password or a code from your bank.",
    ),
    (
        "privacy/your-data-export-and-deletion.md",
        "Invoices and credit notes are kept for 6 years because of tax law.",
        "Invoices and credit notes are kept for 10 years because of tax law.",
    ),
    (
        "product-care/cast-iron-care.md",
        "Raw iron must not go in the dishwasher. The enamelled casseroles can, but we recommend washing them by hand.",
        "Raw iron can go in the dishwasher.",
    ),
    (
        "product-care/clean-si-90-steam-iron.html",
        "Use tap water. If it's hard, mix it half and half with distilled water.",
        "Don't use tap water. If it's hard, mix it half and half with distilled water.",
    ),
    (
        "product-care/descale-km-450.md",
        "The descaling program of the KM-450 takes 28 minutes, and you need to refill the tank in the middle.",
        "The descaling program of the KM-450 takes 35 minutes, and you need to refill the tank in the middle.",
    ),
    (
        "product-care/descale-km-450.md",
        "No, please don't use citric acid powder in the KM-450. It forms crystals in the thermoblock and can block it.",
        "Yes, you can use citric acid powder in the KM-450.",
    ),
    (
        "returns/christmas-returns.md",
        "Food such as hampers and advent calendars can't be returned.",
        "Food such as hampers and advent calendars can be returned.",
    ),
    (
        "returns/exchanges.md",
        "Orders paid with Tandem Pay can only be exchanged for an item that has the same price.",
        "Orders paid with PayPal can only be exchanged for an item that has the same price.",
    ),
    (
        "returns/refund-times.html",
        "We refund you within 5 working days after we have checked your parcel. The money goes back to the "
        "original payment method.",
        "We refund you within 5 working days after we have checked your parcel. The money doesn't go back to the "
        "original payment method.",
    ),
    (
        "returns/return-in-store.md",
        "Without a receipt you get a store credit for the lowest price of the last 60 days, if the item is "
        "unopened and still in our range.",
        "Without a receipt you get a store credit for the lowest price of the last 90 days, if the item is "
        "unopened and still in our range.",
    ),
    (
        "returns/return-online-order.md",
        "One label is for one parcel of up to 20 kg, and its longest side may be 120 cm.",
        "One label is for one parcel of up to 25 kg, and its longest side may be 120 cm.",
    ),
    (
        "returns/returns-policy.md",
        "If you return your whole order within 14 days of delivery, we also refund the EUR 4.95 for Standard "
        "delivery. Extra costs for Express aren't refunded.",
        "If you return your whole order within 14 days of delivery, we also refund the EUR 4.95 for Standard "
        "delivery. Extra costs for Express are refunded.",
    ),
    (
        "shipping/delivery-costs-and-times.md",
        "For islands without a bridge please allow 2 more working days. The price is the same.",
        "For islands without a bridge please allow 4 more working days. The price is the same.",
    ),
    (
        "shipping/express-delivery.md",
        "You get the EUR 9.95 back if the first delivery attempt was later than promised. Please write to us "
        "within 14 days.",
        "You get the EUR 9.95 back if the first delivery attempt was later than promised. Please write to us "
        "within 30 days.",
    ),
    (
        "shipping/large-items-two-person-delivery.md",
        "We carry the item up to the 4th floor without a lift. Each floor above that costs EUR 12.",
        "We carry the item up to the 4th floor without a lift. Each floor above that costs EUR 15.",
    ),
    (
        "shipping/missed-delivery-or-lost-parcel.md",
        "If the parcel isn't found, you can choose between a replacement sent by Express at no cost and a full "
        "refund including the delivery charge.",
        "If the parcel isn't found, you can choose between a replacement sent by Express at no cost and a full "
        "refund excluding the delivery charge.",
    ),
    (
        "shipping/northern-ireland-gb-eu.html",
        "No, we don't deliver to Norway or Switzerland.",
        "Yes, we deliver to Norway and Switzerland.",
    ),
    (
        "shipping/northern-ireland-gb-eu.html",
        "The heaviest parcel we can send to the EU is 20 kg, and the order value is limited to EUR 2,000.",
        "The heaviest parcel we can send to the EU is 25 kg, and the order value is limited to EUR 2,000.",
    ),
    (
        "stores/click-and-collect.md",
        "Click & collect is free and there's no minimum order.",
        "Click & collect is not free and there's no minimum order.",
    ),
    (
        "stores/galway-repair-bench.md",
        "The repair of a KM-450 costs EUR 85 outside warranty, including parts and labour.",
        "The repair of a KM-450 costs EUR 45 outside warranty, including parts and labour.",
    ),
    (
        "stores/opening-hours-and-services.html",
        "On Saturdays Dublin Dundrum is open from 9:30 to 19:00.",
        "On Saturdays Dublin Dundrum is open from 9:30 to 21:00.",
    ),
    (
        "stores/opening-hours-and-services.html",
        "On 24 and 31 December our stores close at 4 pm.",
        "On 24 and 31 December our stores close at 6 pm.",
    ),
    (
        "troubleshooting/dh-12-dehumidifier.md",
        "After moving it, leave the DH-12 upright and switched off for 4 hours.",
        "After moving it, leave the DH-12 upright and switched off for 2 hours.",
    ),
    (
        "troubleshooting/km-450-error-codes.html",
        "E02 means that the grounds drawer is full. Empty it while the machine is switched on.",
        "E02 means that the grounds drawer is full. Empty it while the machine is not switched on.",
    ),
    (
        "troubleshooting/sm-600-stand-mixer.md",
        "For bread dough, use no more than 750 g of flour on speed 2 for up to 8 minutes.",
        "For bread dough, use no more than 500 g of flour on speed 2 for up to 8 minutes.",
    ),
    (
        "troubleshooting/sv-3-battery.md",
        "The SV-3 runs for 22 minutes in Standard mode and 8 minutes in Turbo.",
        "The SV-3 runs for 8 minutes in Standard mode and 22 minutes in Turbo.",
    ),
    (
        "warranty/larkmoor-care.md",
        "Accidental damage is covered once per plan, and you pay an excess of EUR 15.",
        "Accidental damage is covered once per plan, and you pay an excess of EUR 50.",
    ),
    (
        "warranty/make-a-warranty-claim.html",
        "If the fault isn't covered and you decline our quote, we send the appliance back for EUR 9.50 or recycle "
        "it free of charge.",
        "If the fault isn't covered and you decline our quote, we send the appliance back for EUR 12 or recycle "
        "it free of charge.",
    ),
)
"""Freer, and errors among them that take common sense to see."""

CORRECT: tuple[tuple[str, str], ...] = (
    (
        "accounts/create-account-sign-in-reset-password.md",
        "Your account is locked for 30 minutes after six wrong passwords in a row. If you reset your password, it "
        "is unlocked at once.",
    ),
    (
        "accounts/create-account-sign-in-reset-password.md",
        "Yes, you can shop as a guest. Having an account lets you see your orders, save addresses and collect "
        "Larkmoor Circle points.",
    ),
    (
        "accounts/larkmoor-circle-points.md",
        "New points become usable 14 days after delivery. Until then they are shown as pending.",
    ),
    (
        "accounts/larkmoor-circle-points.md",
        "No, vouchers can't be paid out in cash.",
    ),
    (
        "accounts/larkmoor-circle-points.md",
        "Joining is free. Sign in and choose Join the Circle under My account, or give your email address at the "
        "till in one of our stores.",
    ),
    (
        "accounts/newsletter-and-notifications.md",
        "You can unsubscribe with the link at the bottom of any newsletter. You don't need to sign in for this. "
        "It may still take up to 48 hours until no more messages reach you.",
    ),
    (
        "business/bulk-orders-and-quotes.md",
        "For orders from EUR 5,000 you get a discount of 8 %. You need a business account for that.",
    ),
    (
        "business/opening-a-business-account.md",
        "You will hear from us within two working days. In the meantime you can order by card.",
    ),
    (
        "gift-cards/buying-gift-cards.md",
        "I'm sorry, but gift cards can't be returned or exchanged for cash.",
    ),
    (
        "gift-cards/buying-gift-cards.md",
        "Please check your recipient's spam folder first. If the address was mistyped, open the order and choose "
        "Correct and resend.",
    ),
    (
        "gift-cards/using-a-gift-card-and-balance.md",
        "You can check your balance online at larkmoor.example/balance, in your account, by phone or at any till.",
    ),
    (
        "gift-cards/using-a-gift-card-and-balance.md",
        "Gift cards are valid for 5 years from the date of purchase. If yours expired less than three months ago, "
        "we can renew it once for 6 months.",
    ),
    (
        "orders/change-or-cancel-order.md",
        "Go to My orders, open the order and press Cancel order. This works until the order has been packed.",
    ),
    (
        "orders/change-or-cancel-order.md",
        "Once it is packed you can refuse the parcel at the door, redirect it or send it back in the usual way.",
    ),
    (
        "orders/damaged-on-arrival.md",
        "Sorry about that! Please report the damage within 7 days and keep all the packaging. Don't plug the item in.",
    ),
    (
        "orders/missing-or-wrong-items.md",
        "If you received the wrong item, leave it unused and in its packaging. We'll email you a free return "
        "label and send you the right item as soon as the label has been scanned.",
    ),
    (
        "orders/order-status-and-tracking.html",
        "On hold means that something is missing, for example an Eircode. Please answer our email within 5 days, "
        "or the order will be cancelled.",
    ),
    (
        "orders/placing-an-order.md",
        "Only one promotion code can be used per order, but you can combine it with gift cards.",
    ),
    (
        "orders/placing-an-order.md",
        "No, putting something in your basket doesn't reserve it. It is set aside once you have pressed Buy now.",
    ),
    (
        "payments/payment-methods.md",
        "Your card is charged when the goods leave our warehouse, so you may see the amount as pending until then.",
    ),
    (
        "payments/payment-methods.md",
        "Yes, several gift cards can be combined with one other payment method.",
    ),
    (
        "payments/payment-declined.html",
        "That is only a reservation and not a charge. It normally disappears within 7 days without you doing anything.",
    ),
    (
        "privacy/cookies-security-and-phishing.html",
        "Forward the message to phishing@larkmoor.example and delete it afterwards.",
    ),
    (
        "product-care/clean-af-55-air-fryer.md",
        "Yes, the basket and the crisper plate are dishwasher safe on the top rack at up to 55 °C.",
    ),
    (
        "product-care/descale-km-210.md",
        "With soft water you should descale every three months, with hard water every six weeks.",
    ),
    (
        "product-care/wash-inis-duvet.md",
        "Tumble dry it on low heat for 2-3 hours together with two clean tennis balls.",
    ),
    (
        "returns/exchanges.md",
        "Yes. You can exchange an item once per order line within 30 days of delivery (45 days for Larkmoor "
        "Circle members).",
    ),
    (
        "returns/refund-times.html",
        "Refunds to Visa and Mastercard take 2 to 5 working days after we have sent the money.",
    ),
    (
        "returns/return-in-store.md",
        "A friend can return it for you. They need the receipt or the QR code, and the money goes to the person "
        "who paid.",
    ),
    (
        "returns/return-online-order.md",
        "The label is valid for two weeks. If it has expired, simply create a new one.",
    ),
    (
        "returns/returns-policy.md",
        "Yes, you can try the item at home. Appliances may be used up to three times.",
    ),
    (
        "returns/returns-policy.md",
        "Returns are free in all of our 9 stores. If you send a parcel in Ireland, the label costs EUR 3.50, "
        "which is taken off your refund.",
    ),
    (
        "shipping/delivery-costs-and-times.md",
        "No, we don't deliver to PO boxes.",
    ),
    (
        "shipping/express-delivery.md",
        "Express costs EUR 9.95 per order, no matter how many items you buy, and free delivery from EUR 60 does "
        "not apply.",
    ),
    (
        "shipping/large-items-two-person-delivery.md",
        "You can move your appointment free of charge until noon two working days before.",
    ),
    (
        "shipping/missed-delivery-or-lost-parcel.md",
        "Corrib Couriers will try again on the next working day. After that, your parcel is kept at the nearest "
        "pick-up point or depot for six days.",
    ),
    (
        "stores/click-and-collect.md",
        "Bring your order number or the QR code from the email. If the order is worth more than EUR 150, you also "
        "need photo ID.",
    ),
    (
        "stores/galway-repair-bench.md",
        "The repair bench is open Tuesday to Saturday from 10:00 to 17:30 and closed on Sunday and Monday.",
    ),
    (
        "stores/opening-hours-and-services.html",
        "All our stores are closed on 25 December, 26 December, 1 January and Easter Sunday.",
    ),
    (
        "stores/opening-hours-and-services.html",
        "The Galway store opens at 9:00 and closes at 20:00 on Thursdays and Fridays.",
    ),
    (
        "troubleshooting/ap-40-filter-light.md",
        "A steady orange light means that you should replace the filter within two weeks. After that, hold the "
        "filter button for 6 seconds to reset the light.",
    ),
    (
        "troubleshooting/dh-12-dehumidifier.md",
        "Code P2 stands for a fault of the coil temperature sensor. Please contact us.",
    ),
    (
        "troubleshooting/ih-2-error-codes.md",
        "E0 means there is no pan or the pan is unsuitable. Use one with a magnetic base that is at least 12 cm wide.",
    ),
    (
        "troubleshooting/rv-8-error-codes-and-wifi.md",
        "The Skerry only works with 2.4 GHz networks, so it cannot see your 5 GHz network.",
    ),
    (
        "troubleshooting/sv-3-pro-battery.md",
        "A full charge of the SV-3 Pro takes 3 hours on the floor dock.",
    ),
    (
        "warranty/larkmoor-care.md",
        "Yes, within 60 days of purchase. Go to My account > Orders, choose the appliance and tap Add Larkmoor Care.",
    ),
    (
        "warranty/make-a-warranty-claim.html",
        "We will reply within 2 working days with a fix to try, a spare part or a collection.",
    ),
    (
        "warranty/warranty-terms.md",
        "No, a repair does not restart the warranty. The part we replaced is covered for 12 months or until your "
        "original warranty ends, whichever is later.",
    ),
    (
        "warranty/warranty-terms.md",
        "The motor of your SM-600 is covered for 5 years, everything else for 2 years.",
    ),
)
"""Freer still, nothing wrong with any of them."""
