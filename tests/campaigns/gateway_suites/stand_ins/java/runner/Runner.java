package runner;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import kafka.server.QuorumTestHarness;
import org.junit.jupiter.api.extension.AfterTestExecutionCallback;
import org.junit.jupiter.api.extension.ConditionEvaluationResult;
import org.junit.jupiter.api.extension.ExecutionCondition;
import org.junit.jupiter.api.extension.ExtensionContext;
import org.junit.platform.engine.TestExecutionResult;
import org.junit.platform.engine.discovery.DiscoverySelectors;
import org.junit.platform.launcher.Launcher;
import org.junit.platform.launcher.TestExecutionListener;
import org.junit.platform.launcher.TestIdentifier;
import org.junit.platform.launcher.core.LauncherDiscoveryRequestBuilder;
import org.junit.platform.launcher.core.LauncherFactory;

/**
 * Runs the classes of its arguments with JUnit, and prints a line for each test. The first argument is a regular
 * expression of the tests' names. The standard input has the names of tests that are left out, one in a line.
 *
 * <p>A name is {@code Class.method}, and for a test with parameters {@code Class.method.name=value}. The name of a
 * method without parameters stands for all of its tests. The names of later tests with the same parameters end in
 * {@code #2}, {@code #3} and so on.
 */
public final class Runner implements ExecutionCondition, AfterTestExecutionCallback, TestExecutionListener {
    private static final String NOT_CHOSEN = "not chosen";
    private static final String LISTED = "listed";
    private static Pattern chosen;
    private static Set<String> refused;
    private static final Map<String, String> NAMES = new ConcurrentHashMap<>();

    public static void main(String[] arguments) throws Exception {
        chosen = Pattern.compile(arguments[0]);
        refused = new BufferedReader(new InputStreamReader(System.in)).lines().collect(Collectors.toSet());
        LauncherDiscoveryRequestBuilder request = LauncherDiscoveryRequestBuilder.request()
            .configurationParameter("junit.jupiter.extensions.autodetection.enabled", "true")
            .configurationParameter("junit.jupiter.execution.timeout.default", System.getProperty("sparklog.timeout"));
        for (int i = 1; i < arguments.length; i++) {
            request.selectors(DiscoverySelectors.selectClass(arguments[i]));
        }
        Launcher launcher = LauncherFactory.create();
        launcher.execute(request.build(), new Runner());
        System.exit(0);
    }

    @Override
    public ConditionEvaluationResult evaluateExecutionCondition(ExtensionContext context) {
        boolean isTemplate = context.getUniqueId().contains("[test-template:")
            && !context.getUniqueId().contains("[test-template-invocation:");
        if (context.getTestMethod().isEmpty() || isTemplate) {
            return ConditionEvaluationResult.enabled("no test");
        }
        String name = name(context.getRequiredTestClass().getName(), context.getRequiredTestMethod().getName(),
            context.getDisplayName());
        for (int i = 2; NAMES.containsValue(name); i++) {
            name = name.replaceFirst("(#\\d+)?$", "#" + i);
        }
        NAMES.put(context.getUniqueId(), name);
        System.out.println("TEST " + name);
        String method = name(context.getRequiredTestClass().getName(), context.getRequiredTestMethod().getName(), "");
        if (refused.contains(name) || refused.contains(method)) {
            return ConditionEvaluationResult.disabled(LISTED);
        }
        return chosen.matcher(name).find()
            ? ConditionEvaluationResult.enabled("chosen") : ConditionEvaluationResult.disabled(NOT_CHOSEN);
    }

    @Override
    public void afterTestExecution(ExtensionContext context) {
        if (context.getRequiredTestInstance() instanceof QuorumTestHarness test) {
            test.testOver();
        }
    }

    private static String name(String type, String method, String display) {
        String parameters = display.replaceFirst("^[^.]*", "").replace(".quorum=kraft", "");
        return type.substring(type.lastIndexOf('.') + 1) + "." + method + parameters;
    }

    private static String name(TestIdentifier test) {
        return NAMES.getOrDefault(test.getUniqueId(), test.getLegacyReportingName().replace(" ", ""));
    }

    @Override
    public void executionStarted(TestIdentifier test) {
        if (test.isTest()) {
            System.out.println("RUN " + name(test));
        }
    }

    @Override
    public void executionSkipped(TestIdentifier test, String reason) {
        if (!reason.equals(NOT_CHOSEN) && !reason.equals(LISTED)) {
            System.out.println("SKIPPED " + name(test) + " " + reason);
        }
    }

    @Override
    public void executionFinished(TestIdentifier test, TestExecutionResult result) {
        boolean isGood = result.getStatus() == TestExecutionResult.Status.SUCCESSFUL;
        if (test.isTest() || !isGood) {
            System.out.println((isGood ? "PASSED " : "FAILED ") + name(test));
        }
        result.getThrowable().ifPresent(error -> {
            StringWriter text = new StringWriter();
            error.printStackTrace(new PrintWriter(text));
            System.out.println(text.toString());
        });
        System.out.flush();
    }
}
