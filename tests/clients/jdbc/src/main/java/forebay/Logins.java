package forebay;

import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.List;
import java.util.Map;
import java.util.Properties;

/** Who may connect to a server that has users, and a certificate. */
final class Logins {
    private final Checks checks;
    private final String address;
    private final String trusted;
    private final String token;

    Logins(Checks checks, Map<String, String> given) {
        this.checks = checks;
        address = "jdbc:arrow-flight-sql://" + given.get("guarded");
        trusted = "?useEncryption=true&tlsRootCerts=" + given.get("authority");
        token = given.get("token");
    }

    void run() {
        for (String[] who : new String[][] {
            {"ada", "lovelace"}, {"u7", "ppppppp"}, {"ädä", "lövelace"}, {"colons", ":a::b:"},
        }) {
            checks.step("log-in of " + who[0], () -> login(trusted, who[0], who[1]));
        }
        checks.step("log-in in the URL",
                () -> asks(trusted + "&user=ada&password=lovelace", new Properties()));
        checks.step("a token in the URL", () -> asks(trusted + "&token=" + token, new Properties()));
        checks.step("no verification", () -> login(
                "?useEncryption=true&disableCertificateVerification=true", "ada", "lovelace"));
        checks.refused("a wrong password", "the user or the password is wrong",
                () -> login(trusted, "ada", "byron"));
        checks.refused("a wrong token", "the token is wrong",
                () -> asks(trusted + "&token=forebay-0", new Properties()));
        checks.refused("nobody", "who you are", () -> asks(trusted, new Properties()));
        checks.refused("an unknown authority", "", () -> login(
                "?useEncryption=true&useSystemTrustStore=true", "ada", "lovelace"));
        checks.refused("no encryption", "", () -> login(
                "?useEncryption=false&connectTimeoutMs=2000", "ada", "lovelace"));
    }

    private void login(String options, String user, String password) throws SQLException {
        Properties who = new Properties();
        who.setProperty("user", user);
        who.setProperty("password", password);
        asks(options, who);
    }

    private void asks(String options, Properties who) throws SQLException {
        try (Connection connection = DriverManager.getConnection(address + options, who);
                Statement statement = connection.createStatement()) {
            checks.equal("a query after log-in", List.of(List.of(1L)),
                    Checks.rows(statement, "SELECT 1 AS n"));
        }
    }
}
