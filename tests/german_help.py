"""A small German help centre and questions about it, in the forms of words that customers use."""

DOCUMENTS = {
    "Lieferung": "Standardsendungen sind in drei bis fünf Werktagen bei Ihnen. Der Versand kostet 4,95 Euro, ab einem "
    "Bestellwert von 50 Euro liefern wir kostenlos. Sperrige Möbel bringt eine Spedition bis in die Wohnung.",
    "Rückgabe": "Sie können ungeöffnete Artikel innerhalb von 30 Tagen zurückgeben. Das Rücksendeetikett drucken Sie "
    "in Ihrem Kundenkonto aus. Matratzen und Unterwäsche sind aus hygienischen Gründen ausgeschlossen.",
    "Erstattung": "Wir erstatten den Kaufpreis, sobald das Paket im Lager geprüft wurde, spätestens nach zehn Tagen. "
    "Das Geld geht auf das Zahlungsmittel, mit dem Sie bezahlt haben.",
    "Zahlungsarten": "Sie bezahlen mit Kreditkarte, Lastschrift oder auf Rechnung. Schecks nehmen wir nicht an. "
    "Rechnungen sind nach 14 Tagen fällig.",
    "Garantie": "Für alle elektrischen Geräte gilt eine Garantie von zwei Jahren. Verschleißteile wie Dichtungen und "
    "Akkus sind davon nicht gedeckt. Bewahren Sie den Kaufbeleg auf.",
    "Kaffeemaschine entkalken": "Leeren Sie den Wassertank und füllen Sie einen halben Liter Entkalker ein. Drücken "
    "Sie die Dampftaste fünf Sekunden lang. Spülen Sie die Maschine danach zweimal mit klarem Wasser.",
    "Passwort und Anmeldung": "Haben Sie Ihr Passwort vergessen, schicken wir Ihnen einen Link zum Zurücksetzen. Er "
    "gilt eine Stunde. Nach fünf falschen Versuchen wird das Konto für einen Tag gesperrt.",
    "Gutscheine": "Geschenkgutscheine verfallen nach drei Jahren. Sie werden nicht in bar ausgezahlt. Pro Bestellung "
    "lassen sich höchstens zwei Gutscheine einlösen.",
    "Bestellung ändern": "Solange ein Auftrag nicht verpackt ist, lassen sich Adresse und Menge ändern oder die ganze "
    "Bestellung stornieren. Danach hilft nur noch die Annahmeverweigerung.",
    "Filialen": "Unsere Läden in Köln und Leipzig öffnen montags bis samstags von 10 bis 19 Uhr. An Feiertagen ist "
    "geschlossen. Parkplätze stehen hinter dem Haus.",
    "Newsletter und Daten": "Den Newsletter bestellen Sie über den Verweis am Ende jeder Ausgabe ab. Ihre Daten "
    "löschen wir auf Anfrage innerhalb eines Monats.",
    "Staubsauger lädt nicht": "Reinigen Sie die Kontakte der Ladestation mit einem trockenen Tuch. Blinkt die Anzeige "
    "rot, ist der Akku überhitzt und muss abkühlen.",
}
"""Titles and texts."""
QUESTIONS = (
    ("Wie lange dauert die Zustellung bei Standardversand?", "Lieferung"),
    ("Was kosten Sendungen unter 50 Euro?", "Lieferung"),
    ("Bringen Sie große Möbelstücke in die Wohnung?", "Lieferung"),
    ("Bis wann darf ich einen Artikel zurückschicken?", "Rückgabe"),
    ("Kann ich eine Matratze zurückgeben?", "Rückgabe"),
    ("Wo finde ich die Etiketten für Rücksendungen?", "Rückgabe"),
    ("Wann bekomme ich mein Geld zurück?", "Erstattung"),
    ("Wie schnell werden Kaufpreise erstattet?", "Erstattung"),
    ("Kann ich mit einem Scheck zahlen?", "Zahlungsarten"),
    ("Wann muss die Rechnung beglichen sein?", "Zahlungsarten"),
    ("Welche Kreditkarten gehen?", "Zahlungsarten"),
    ("Wie viele Jahre Garantie hat ein elektrisches Gerät?", "Garantie"),
    ("Ist eine defekte Dichtung von der Garantie gedeckt?", "Garantie"),
    ("Wie entkalke ich meine Kaffeemaschine?", "Kaffeemaschine entkalken"),
    ("Wie viel Liter Wasser und Entkalker kommen in den Tank?", "Kaffeemaschine entkalken"),
    ("Ich habe mein Passwort vergessen", "Passwort und Anmeldung"),
    ("Warum sind meine Konten gesperrt?", "Passwort und Anmeldung"),
    ("Wie lange gilt ein Geschenkgutschein?", "Gutscheine"),
    ("Zahlen Sie einen Gutschein bar aus?", "Gutscheine"),
    ("Wie storniere ich einen Auftrag?", "Bestellung ändern"),
    ("Kann ich die Adressen nachträglich ändern?", "Bestellung ändern"),
    ("Ist der Laden in Leipzig am Samstag geöffnet?", "Filialen"),
    ("Gibt es einen Parkplatz?", "Filialen"),
    ("Wie werde ich den Newsletter los?", "Newsletter und Daten"),
    ("Löschung meiner Daten", "Newsletter und Daten"),
    ("Die Anzeige vom Staubsauger blinkt rot", "Staubsauger lädt nicht"),
    ("Staubsauger laden: welche Kontakte reinigen?", "Staubsauger lädt nicht"),
    ("überhitzte Akkus", "Staubsauger lädt nicht"),
)
"""Questions, each with the title of the document that answers it."""
