"""Answers written by hand for passages of data/knowledge, as an agent or a small language model would put them, each
with a variant into which one error was planted by hand. What was planted is the comment's or the eye's to see.
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
        "Click Forgot password? on the sign-in page and enter your email address. The link we send you is valid for "
        "60 minutes.",
        "Click Forgot password? on the sign-in page and enter your email address. The link we send you is valid for "
        "15 minutes.",
    ),
    (
        "accounts/create-account-sign-in-reset-password.md",
        "The message A-09 means that we locked your account because of unusual activity. Please call +353 1 555 0142, as "
        "we can't lift this lock in the chat.",
        "The message A-09 means that we locked your account because of unusual activity. Please call +353 1 555 0124, as "
        "we can't lift this lock in the chat.",
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
        "The PIN is under the silver strip on the back of a plastic card. If it's a digital card, you find the number and "
        "the PIN in the email.",
        "The PIN is under the silver strip on the back of a plastic card. If it's a digital card, you don't find the "
        "number and the PIN in the email.",
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
        "Please report the damage within 7 days of delivery. Take three photos: the whole box from outside, the packing "
        "inside and the damage from close up.",
        "Please report the damage within 14 days of delivery. Take three photos: the whole box from outside, the packing "
        "inside and the damage from close up.",
    ),
    (
        "orders/damaged-on-arrival.md",
        "If there is only a visible mark and it works perfectly, you can choose a new item, or keep it and get 15% back.",
        "If there is only a visible mark and it works perfectly, you can choose a new item, or keep it and get 25% back.",
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
        "A return at a Corrib pick-up point costs EUR 3.50 and is free for Circle members. A collection from your door "
        "costs EUR 6.50, or EUR 3.00 for Circle members.",
        "A return at a Corrib pick-up point costs EUR 3.50 and is free for Circle members. A collection from your door "
        "costs EUR 3.50, or EUR 3.00 for Circle members.",
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
        "E08 means that the machine is locked because descaling is overdue. Run the descaling program to the end; a restart "
        "won't clear this code.",
        "E06 means that the machine is locked because descaling is overdue. Run the descaling program to the end; a restart "
        "won't clear this code.",
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
