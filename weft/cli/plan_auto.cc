// `weft plan auto`: searches for the best layout of a recipe on a cluster, and explains it.
#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>

#include "weft/base/deadline.h"
#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/json/json.h"
#include "weft/base/log.h"
#include "weft/base/text/numbers.h"
#include "weft/cli/commands.h"
#include "weft/cli/internal/output_file.h"
#include "weft/cli/internal/table.h"
#include "weft/plan/cluster/catalog.h"
#include "weft/plan/cluster/cluster_file.h"
#include "weft/plan/collectives/calibration.h"
#include "weft/plan/pictures/step_page.h"
#include "weft/plan/scenario/scenario.h"
#include "weft/plan/search/no_layout.h"
#include "weft/train/planner/planning.h"
#include "weft/train/recipe.h"

namespace weft::cli {
namespace {

std::string figure(double value, const char* unit) { return formatted("%.4g%s", value, unit); }

// A file, or the name of a known system.
plan::Cluster named_cluster(const AutoCommand& command) {
  const bool file = command.cluster.find('/') != std::string::npos ||
                    command.cluster.find(".toml") != std::string::npos;
  if (!file) return plan::cluster_of_system(command.cluster, command.nodes.value_or(1));
  plan::Cluster cluster = plan::load_cluster(command.cluster);
  if (!cluster.machine.empty() && cluster.machine != plan::machine_identity())
    log_warn(command.cluster + " was measured on another machine (" + cluster.machine +
             "); run weft plan profile on this one");
  return command.nodes ? plan::with_nodes(cluster, *command.nodes) : cluster;
}

plan::Cluster cluster_of(const AutoCommand& command) {
  plan::Cluster cluster = named_cluster(command);
  if (command.price > 0)
    for (plan::Accelerator& accelerator : cluster.accelerators) accelerator.price = command.price;
  return cluster;
}

// Throws Error: what is short by how much, and the nearest plan, or that the time ran out.
[[noreturn]] void refuse(const plan::Found& found, const plan::Job& job,
                         plan::SearchOptions options) {
  const std::string text = plan::why_no_layout(found, job, options.headroom);
  if (!found.complete) throw Error(Errc::kInvalidArgument, text + "; give more --seconds");
  if (found.nearest.empty())
    throw Error(Errc::kBadConfig, text + "; use another number of nodes or another train.batch");
  options.seconds = 2;
  const std::string more = plan::nodes_that_fit(job, options);
  throw Error(Errc::kBadConfig, more.empty() ? text : text + "; " + more);
}

struct PartRow {
  const char* name;
  double plan::Parts::*part;
};
constexpr PartRow kPartRows[] = {{"compute", &plan::Parts::compute},
                                 {"recompute", &plan::Parts::recompute},
                                 {"bubble", &plan::Parts::bubble},
                                 {"tensor parallel", &plan::Parts::tensor},
                                 {"context parallel", &plan::Parts::context},
                                 {"expert parallel", &plan::Parts::expert},
                                 {"stage messages", &plan::Parts::pipeline},
                                 {"sharding", &plan::Parts::sharding},
                                 {"gradients", &plan::Parts::gradients},
                                 {"optimizer", &plan::Parts::optimizer},
                                 {"other", &plan::Parts::other}};

void print_step(const plan::Step& step, const AutoCommand& command) {
  std::cout << "step " << figure(step.seconds, " s");
  if (step.tokens_per_s > 0) std::cout << ", " << figure(step.tokens_per_s, " tokens/s");
  std::cout << ", " << figure(step.samples_per_s, " samples/s");
  if (step.mfu > 0) std::cout << ", MFU " << figure(100 * step.mfu, " %");
  if (step.dollars > 0)
    std::cout << ", " << figure(step.dollars / step.seconds * 3600, " $ an hour");
  std::cout << '\n';
  if (command.tokens > 0 && step.tokens_per_s > 0) {
    const double hours = command.tokens / step.tokens_per_s / 3600;
    std::cout << figure(command.tokens, " tokens") << " take " << figure(hours, " hours");
    if (step.dollars > 0)
      std::cout << " and " << figure(step.dollars / step.seconds * 3600 * hours, " $");
    std::cout << '\n';
  }
  std::vector<std::vector<std::string>> rows = {{"part", "seconds", "share"}};
  for (const PartRow& row : kPartRows) {
    const double seconds = step.parts.*row.part;
    if (seconds > 0)
      rows.push_back({row.name, figure(seconds, ""), figure(100 * seconds / step.seconds, " %")});
  }
  std::cout << '\n';
  print_table(rows);
}

void print_memory(const plan::Step& step) {
  std::vector<std::vector<std::string>> rows = {
      {"pp rank", "weights", "gradients", "optimizer", "activations", "rest", "GiB", "of", "at"}};
  const auto gib = [](double bytes) { return figure(bytes / plan::kGiB, ""); };
  const std::size_t count = step.memory.size();
  for (std::size_t r = 0; r < count; ++r) {
    if (count > 12 && r >= 6 && r + 4 < count) {
      if (r == 6) rows.push_back({"…", "", "", "", "", "", "", "", ""});
      continue;
    }
    const plan::Memory& m = step.memory[r];
    rows.push_back({std::to_string(r), gib(m.weights), gib(m.gradients), gib(m.optimizer),
                    gib(m.activations), gib(m.transient + m.fragmentation + m.context),
                    gib(m.total()), gib(step.capacity[r]), figure(m.seconds, " s")});
  }
  std::cout << '\n';
  print_table(rows);
}

void print_text(const plan::PlanPage& page, const AutoCommand& command) {
  const plan::LayoutCandidate& best = page.found.best.front();
  std::cout << page.title << "\n\n" << plan::describe(best.layout) << "\n\n" << page.recipe << '\n';
  print_step(best.step, command);
  print_memory(best.step);
  std::cout << "\nnext best:\n";
  for (std::size_t i = 1; i < page.found.best.size(); ++i)
    std::cout << "  " << figure(page.found.best[i].step.seconds, " s") << "  "
              << plan::describe(page.found.best[i].layout) << ": " << page.found.best[i].why
              << '\n';
  if (!page.knee.text.empty()) std::cout << "\nknee: " << page.knee.text << '\n';
  std::cout << page.found.layouts << " layouts, " << page.found.simulated << " simulated"
            << (page.found.complete ? "" : "; the time ran out before all were compared") << '\n';
}

void print_json(const plan::PlanPage& page) {
  using Json = nlohmann::ordered_json;
  Json plans = Json::array(), points = Json::array();
  for (const plan::LayoutCandidate& c : page.found.best) {
    plan::Scenario scenario;
    scenario.job = page.job;
    scenario.job.layout = c.layout;
    plans.push_back({{"layout", plan::describe(c.layout)},
                     {"why", c.why},
                     {"step", plan::answer_json(scenario, c.step)}});
  }
  for (const plan::KneePoint& p : page.knee.points) {
    points.push_back({{"nodes", p.nodes},
                      {"devices", p.devices},
                      {"samples_per_s", p.samples_per_s},
                      {"efficiency", p.efficiency}});
  }
  std::cout << json_line(
                   {{"recipe", page.recipe},
                    {"complete", page.found.complete},
                    {"layouts", page.found.layouts},
                    {"plans", plans},
                    {"knee",
                     {{"nodes", page.knee.nodes}, {"text", page.knee.text}, {"points", points}}}})
            << '\n';
}

}  // namespace

int plan_auto(const AutoCommand& command) {
  for (const double number : {command.tokens, command.price, command.seconds})
    WEFT_REQUIRE(std::isfinite(number), "--tokens, --price and --seconds need a finite number");
  if (!command.html.empty()) check_output("--html", command.html);
  const Config config = train::load_recipe(command.recipe, command.assignments);
  plan::PlanPage page;
  page.job = train::planned_job(config, cluster_of(command),
                                {.vocabulary = command.vocabulary, .profile = command.profile});
  plan::SearchOptions options;
  options.goal = plan::parse_goal(command.goal);
  options.space = train::space_of(config);
  if (!command.codecs.empty()) {
    options.space.codecs = command.codecs;
    options.space.codecs.insert(options.space.codecs.begin(), "none");
  }
  for (const std::string& strategy : command.strategies)
    options.space.rules.push_back(plan::parse_rule(strategy));
  options.seconds = command.seconds;
  options.clock = steady_seconds;
  page.found = plan::search(page.job, options);
  if (page.found.best.empty()) refuse(page.found, page.job, options);
  page.job.layout = page.found.best.front().layout;
  page.title = "plan of " + train::recipe_name(train::find_recipe(command.recipe)) + " on " +
               plan::describe(page.job.cluster);
  page.recipe = train::recipe_fragment(page.job.layout, page.job);
  if (command.knee)
    page.knee = plan::find_knee(page.job, options, plan::num_nodes(page.job.cluster));
  if (command.json) {
    print_json(page);
  } else {
    print_text(page, command);
  }
  // After the answer, which does not depend on the page.
  if (!command.html.empty()) {
    page.changes = plan::sensitivity(page.job);
    write_file_atomic(command.html, plan::plan_page(page));
    std::cerr << "written to " << command.html << '\n';
  }
  return 0;
}

}  // namespace weft::cli
