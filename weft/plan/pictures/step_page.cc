// The page of a plan.
#include "weft/plan/pictures/step_page.h"

#include <cmath>

#include "weft/base/svg/svg.h"
#include "weft/base/text/numbers.h"
#include "weft/plan/mesh/pictures/mesh_picture.h"

namespace weft::plan {
namespace {

constexpr const char* kStyle = R"(<style>
:root { --text: #1c2430; --soft: #5d6b7c; --line: #d9dfe7; --back: #ffffff; --panel: #f6f8fa;
  --forward: #2f7ed8; --backward: #e0752d; --weight: #f0b06a; --exchange: #8a63d2;
  --optimizer: #2a9d65; --better: #2a9d65; --worse: #c23b6d; --m-weights: #2f7ed8;
  --m-gradients: #e0752d; --m-optimizer: #2a9d65; --m-activations: #c9a227; --m-transient: #8a63d2;
  --m-rest: #9aa4b0; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e4e9f0; --soft: #9aa7b8; --line: #344050; --back: #12171e; --panel: #1a212b;
    --forward: #5b9ce6; --backward: #e58a4e; --weight: #b98049; --exchange: #a586e0;
    --m-rest: #6b7683; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1180px; padding: 24px 20px 60px; background: var(--back);
  color: var(--text); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 24px; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 18px; margin: 36px 0 10px; }
p.note { color: var(--soft); margin: 0 0 12px; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); gap: 10px;
  margin: 16px 0; }
.cards div { background: var(--panel); border: 1px solid var(--line); border-radius: 8px;
  padding: 10px 14px; }
.cards b { display: block; font-size: 20px; font-variant-numeric: tabular-nums; }
.cards span { color: var(--soft); font-size: 13px; }
figure { margin: 0 0 16px; padding: 12px 14px; background: var(--panel);
  border: 1px solid var(--line); border-radius: 8px; overflow-x: auto; }
svg { display: block; width: 100%; min-width: 560px; height: auto; }
figure.mesh svg { width: auto; max-width: 100%; min-width: 320px; border-radius: 6px; }
svg text { fill: var(--soft); font: 11px system-ui, sans-serif; }
figure.mesh svg text { fill: #1c2430; font: inherit; }
.grid { stroke: var(--line); stroke-width: 1; }
.capacity { stroke: var(--text); stroke-width: 1.5; }
.ideal { stroke: var(--soft); stroke-dasharray: 4 4; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; margin: 0 0 8px; font-size: 13px; }
.legend i { display: inline-block; width: 12px; height: 12px; border-radius: 3px;
  margin-right: 6px; vertical-align: -1px; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 8px; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px;
  font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 6px 12px; border-bottom: 1px solid var(--line); }
td.number, th.number { text-align: right; white-space: nowrap; }
th { color: var(--soft); font-weight: 600; background: var(--panel); }
tr:last-child td { border-bottom: 0; }
pre { background: var(--panel); border: 1px solid var(--line); border-radius: 8px;
  padding: 12px 14px; overflow-x: auto; font-size: 13px; }
</style>
)";

std::string number(double value, const char* unit = "") { return formatted("%.4g%s", value, unit); }

std::string card(const std::string& value, const std::string& what) {
  return "<div><b>" + value + "</b><span>" + what + "</span></div>\n";
}

std::string cards(const PlanPage& page, const Step& step) {
  std::string html = "<div class=\"cards\">\n" + card(number(step.seconds, " s"), "a step");
  if (step.tokens_per_s > 0) {
    html += card(number(step.tokens_per_s), "tokens a second");
  } else {
    html += card(number(step.samples_per_s), "samples a second");
  }
  if (step.mfu > 0) html += card(number(100 * step.mfu, " %"), "model FLOPs utilization");
  html += card(number(step.peak().total() / kGiB, " GiB"), "memory of the fullest rank");
  if (step.dollars > 0) html += card(number(step.dollars / step.seconds * 3600, " $"), "an hour");
  if (step.joules > 0) html += card(number(step.joules / 1e3, " kJ"), "a step");
  (void)page;
  return html + "</div>\n";
}

std::string legend(std::initializer_list<std::pair<const char*, const char*>> entries) {
  std::string html = "<div class=\"legend\">";
  for (const auto& [color, name] : entries)
    html +=
        std::string("<span><i style=\"background:var(--") + color + ")\"></i>" + name + "</span>";
  return html + "</div>\n";
}

std::string left_out(const Step& step) {
  if (step.left_out == 0) return "";
  return "<p class=\"note\">The picture leaves out " + std::to_string(step.left_out) +
         " micro-batches of the steady state.</p>\n";
}

std::string parts_table(const Step& step) {
  const Parts& p = step.parts;
  const std::pair<const char*, double> rows[] = {{"forward and backward", p.compute},
                                                 {"recomputation", p.recompute},
                                                 {"bubble of the pipeline", p.bubble},
                                                 {"tensor parallelism, exposed", p.tensor},
                                                 {"context parallelism, exposed", p.context},
                                                 {"expert parallelism, exposed", p.expert},
                                                 {"messages between stages, exposed", p.pipeline},
                                                 {"shards, exposed", p.sharding},
                                                 {"gradients, exposed", p.gradients},
                                                 {"optimizer", p.optimizer},
                                                 {"other", p.other}};
  std::string html =
      "<div class=\"scroll\"><table><tr><th>part of the slowest rank</th><th "
      "class=\"number\">seconds</th><th class=\"number\">share</th></tr>\n";
  for (const auto& [name, seconds] : rows) {
    if (seconds <= 0) continue;
    html += std::string("<tr><td>") + name + "</td><td class=\"number\">" + number(seconds) +
            "</td><td class=\"number\">" + number(100 * seconds / step.seconds, " %") +
            "</td></tr>\n";
  }
  return html + "</table></div>\n";
}

std::string layouts_table(const Found& found) {
  std::string html =
      "<div class=\"scroll\"><table><tr><th>layout</th><th "
      "class=\"number\">step</th><th class=\"number\">memory</th><th>why it "
      "loses</th></tr>\n";
  for (const LayoutCandidate& c : found.best)
    html += "<tr><td>" + escape_markup(describe(c.layout)) + "</td><td class=\"number\">" +
            number(c.step.seconds, " s") + "</td><td class=\"number\">" +
            number(c.step.peak().total() / kGiB, " GiB") + "</td><td>" +
            (c.why.empty() ? "chosen" : escape_markup(c.why)) + "</td></tr>\n";
  return html + "</table></div>\n";
}

std::string mesh_figure(const Job& job) {
  std::vector<int> hosts;
  for (const NodeType& type : job.cluster.nodes)
    hosts.insert(hosts.end(), static_cast<std::size_t>(type.count), type.devices);
  std::vector<Axis> axes;
  for (const Axis& axis : axes_of(job.layout))
    if (axis.size > 1) axes.push_back(axis);
  if (axes.empty()) axes.push_back({"dp", 1});
  const int world = world_of(job.layout);
  if (world > 64) {
    return "<pre>" + escape_markup(show(MeshLayout(world, axes), hosts)) + "</pre>\n";
  }
  return "<figure class=\"mesh\">" + show_svg(MeshLayout(world, axes), hosts) + "</figure>\n";
}

}  // namespace

std::string plan_page(const PlanPage& page) {
  const Step& step = page.found.best.front().step;
  std::string html =
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta "
      "name=\"color-scheme\" content=\"light dark\">\n<meta name=\"viewport\" "
      "content=\"width=device-width, initial-scale=1\">\n<title>" +
      escape_markup(page.title) + "</title>\n" + kStyle + "</head>\n<body>\n<h1>" +
      escape_markup(page.title) + "</h1>\n<p class=\"note\">" +
      escape_markup(describe(page.job.layout)) + "</p>\n";
  html += cards(page, step);
  html += "<h2>Timeline of a step</h2>\n<figure>" +
          legend({{"forward", "forward"},
                  {"backward", "backward"},
                  {"weight", "backward of weights"},
                  {"exchange", "gradients and shards"},
                  {"optimizer", "optimizer"}}) +
          timeline_svg(step) + left_out(step) + "</figure>\n" + parts_table(step);
  html += "<h2>Memory by rank</h2>\n<figure>" +
          legend({{"m-weights", "weights"},
                  {"m-gradients", "gradients"},
                  {"m-optimizer", "optimizer state"},
                  {"m-activations", "activations"},
                  {"m-transient", "transient"},
                  {"m-rest", "fragmentation and context"}}) +
          memory_svg(step) + "</figure>\n";
  html += "<h2>The next best layouts</h2>\n" + layouts_table(page.found);
  html += "<h2>Mesh on the nodes</h2>\n" + mesh_figure(page.job);
  html +=
      "<h2>Sensitivity</h2>\n<p class=\"note\">Change of the throughput if one figure changes "
      "and the layout stays.</p>\n<figure>" +
      sensitivity_svg(page.changes) + "</figure>\n";
  const std::string knee = knee_svg(page.knee);
  if (!knee.empty())
    html += "<h2>More and fewer nodes</h2>\n<p class=\"note\">" + escape_markup(page.knee.text) +
            "</p>\n<figure>" + knee + "</figure>\n";
  html += "<h2>Recipe</h2>\n<pre>" + escape_markup(page.recipe) + "</pre>\n</body>\n</html>\n";
  return html;
}

}  // namespace weft::plan
