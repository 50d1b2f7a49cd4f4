#include "weft/plan/cluster/catalog.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <map>

#include "weft/base/config.h"
#include "weft/base/error.h"
#include "weft/plan/cluster/internal/tables.h"

namespace weft::plan {
namespace {

using internal::AcceleratorRow;
using internal::LinkRow;

// Lower-case words of letters and digits, split where letters change to digits after a word's
// second part: "A100-80GB SXM" is {a100, 80gb, sxm}.
std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words(1);
  for (const char c : text.substr(0, 200)) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      words.back() += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    } else if (!words.back().empty()) {
      words.emplace_back();
    }
  }
  if (words.back().empty()) words.pop_back();
  return words;
}

std::string joined(std::string_view text) {
  std::string all;
  for (const std::string& word : words_of(text)) all += word;
  return all;
}

// Words that only describe: they may be missing in either name.
bool is_filler(const std::string& word) {
  static const std::vector<std::string> kFillers = {"nvidia",  "tesla", "amd",  "google", "cloud",
                                                    "gpu",     "gpus",  "the",  "node",   "nodes",
                                                    "cluster", "per",   "intel"};
  return std::find(kFillers.begin(), kFillers.end(), word) != kFillers.end();
}

// Number of words of `name` that `wanted` has, too; -1 if a word of `wanted` that names hardware
// (has a digit, such as "a100") is missing in `name`.
int score_of(const std::vector<std::string>& wanted, std::string_view name) {
  const std::vector<std::string> there = words_of(name);
  const std::string all = joined(name);
  int score = 0;
  for (const std::string& word : wanted) {
    if (is_filler(word)) continue;
    const bool same = std::find(there.begin(), there.end(), word) != there.end();
    if (same) {
      score += 2;
    } else if (all.find(word) != std::string::npos) {
      score += 1;
    } else {
      score -= 1;
    }
  }
  return score;
}

// The entry that `wanted` names: equal, or with the most words in common. The first word with a
// digit, such as "a100", must be in the entry.
template <typename Rows, typename Name>
int best_match(std::string_view wanted, const Rows& rows, const Name& name) {
  const std::string key = joined(wanted);
  const std::vector<std::string> words = words_of(wanted);
  const auto hardware = std::find_if(words.begin(), words.end(), [](const std::string& word) {
    return std::isalpha(static_cast<unsigned char>(word[0])) != 0 &&
           std::any_of(word.begin(), word.end(),
                       [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; });
  });
  int best = -1, best_score = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::string_view there = name(rows[i]);
    const std::string whole = joined(there);
    if (whole == key) return static_cast<int>(i);
    // "DGX-2 (V100-32GB SXM3)" begins with a whole name.
    const int prefix =
        whole.size() >= 4 && key.rfind(whole, 0) == 0 ? 100 + static_cast<int>(whole.size()) : 0;
    if (prefix > best_score) {
      best = static_cast<int>(i);
      best_score = prefix;
      continue;
    }
    if (hardware != words.end() && whole.find(*hardware) == std::string::npos) continue;
    const int score = score_of(words, there);
    if (score > best_score) {
      best = static_cast<int>(i);
      best_score = score;
    }
  }
  return best;
}

[[noreturn]] void fail_name(const char* what, std::string_view name,
                            const std::vector<std::string>& known) {
  const auto near = nearest(name, known);
  std::string all;
  for (std::size_t i = 0; i < known.size() && i < 12; ++i) all += (i == 0 ? "" : ", ") + known[i];
  throw Error(Errc::kInvalidArgument,
              std::string(what) + " \"" + std::string(name.substr(0, 60)) + "\" is not known; " +
                  (near ? "did you mean " + *near + "?" : "use one of " + all + ", …"));
}

Accelerator from_row(const AcceleratorRow& row) {
  Accelerator a;
  a.name = row.name;
  a.generation = row.generation;
  a.peaks = {row.fp32 * 1e12, row.tf32 * 1e12, row.fp16 * 1e12,
             row.bf16 * 1e12, row.fp8 * 1e12,  row.fp4 * 1e12};
  a.achievable = row.achievable * 1e12;
  a.memory = row.memory_gb * 1e9;
  // Capacities of GPUs are printed in units of 2^30 bytes.
  if (row.generation != Generation::kTpu) a.memory = row.memory_gb * kGiB;
  a.bandwidth = row.bandwidth_gb * 1e9;
  a.units = row.units;
  a.link = row.link_gb * 1e9;
  a.watts = row.watts;
  return a;
}

const std::vector<Accelerator>& accelerators() {
  static const std::vector<Accelerator> kAll = [] {
    std::vector<Accelerator> all;
    for (const AcceleratorRow& row : internal::accelerator_rows()) all.push_back(from_row(row));
    return all;
  }();
  return kAll;
}

Link from_row(const LinkRow& row) { return {row.gb_per_s * 1e9, row.latency_us * 1e-6, row.share}; }

// "25", "12.5 GB/s", "100 Gb/s": a number first.
bool parse_rate(std::string_view text, Link& link) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value <= 0) return false;
  std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  if (unit == "Gb/s" || unit == "Gbit/s" || unit == "Gbps") {
    value /= 8;
  } else if (!unit.empty() && unit != "GB/s") {
    return false;
  }
  link = {value * 1e9, 9.6e-6, 0.96};
  return true;
}

bool is_card(const Accelerator& a) {
  return a.link < 40e9 || a.name.find("PCIe") != std::string::npos;
}

Link intra_of(const Accelerator& a, Wiring wiring) {
  if (wiring == Wiring::kHost) return {a.link, 5.7e-6, 0.77};
  if (wiring == Wiring::kShared) return {a.link, 1e-6, 0.8};
  if (wiring == Wiring::kTorus) return {a.link, 2e-6, 0.8};
  const double share = a.generation == Generation::kVolta       ? 0.813
                       : a.generation == Generation::kHopper    ? 0.82
                       : a.generation == Generation::kBlackwell ? 0.76
                                                                : 0.78;
  return {a.link, 3.4e-6, share};
}

Link inter_of(const System& system) {
  Link link = {system.inter_gb_per_s * 1e9, 9.6e-6, 0.96};
  if (system.inter == "tcp") link = {link.bandwidth, 25e-6, 0.8};
  if (system.inter == "efa") link = {link.bandwidth, 15e-6, 0.91};  // p5en: 365 of 400 GB/s
  if (system.inter == "ici") link = {link.bandwidth, 2e-6, 0.8};
  if (system.inter_share > 0) link.share = system.inter_share;
  return link;
}

}  // namespace

std::vector<std::string> accelerator_names() {
  std::vector<std::string> names;
  for (const Accelerator& a : accelerators()) names.push_back(a.name);
  return names;
}

std::vector<std::string> link_names() {
  std::vector<std::string> names;
  for (const LinkRow& row : internal::link_rows()) names.emplace_back(row.name);
  return names;
}

std::vector<std::string> system_names() {
  std::vector<std::string> names;
  for (const System& system : internal::system_rows()) names.push_back(system.name);
  return names;
}

const Accelerator& known_accelerator(std::string_view name) {
  const int at = best_match(name, accelerators(),
                            [](const Accelerator& a) { return std::string_view(a.name); });
  if (at < 0) fail_name("accelerator", name, accelerator_names());
  return accelerators()[static_cast<std::size_t>(at)];
}

const System& known_system(std::string_view name) {
  const auto rows = internal::system_rows();
  const int at = best_match(name, rows, [](const System& s) { return std::string_view(s.name); });
  if (at < 0) fail_name("system", name, system_names());
  return rows[static_cast<std::size_t>(at)];
}

Link known_link(std::string_view name) {
  Link link;
  if (parse_rate(name, link)) return link;
  if (name.empty() || name.front() == '-' || name.front() == '0')
    fail_name("link", name, link_names());
  const auto rows = internal::link_rows();
  const int at =
      best_match(name, rows, [](const LinkRow& row) { return std::string_view(row.name); });
  if (at < 0) fail_name("link", name, link_names());
  return from_row(rows[static_cast<std::size_t>(at)]);
}

Cluster cluster_of_accelerator(std::string_view accelerator, int nodes, int per_node) {
  const Accelerator& a = known_accelerator(accelerator);
  Cluster cluster{.name = a.name, .source = "catalog"};
  NodeType type{.devices = per_node, .count = nodes};
  const bool card = is_card(a);
  type.wiring = a.generation == Generation::kTpu   ? Wiring::kTorus
                : a.generation == Generation::kCpu ? Wiring::kShared
                : card                             ? Wiring::kHost
                : a.generation == Generation::kVolta && per_node > 4 && per_node <= 8
                    ? Wiring::kCubeMesh
                    : Wiring::kSwitch;
  type.intra = intra_of(a, type.wiring);
  const double ports = card ? 12.5e9
                       : a.generation == Generation::kVolta || a.generation == Generation::kPascal
                           ? 50e9
                       : a.generation == Generation::kAmpere      ? 25e9 * per_node
                       : a.name.find("B300") != std::string::npos ? 100e9 * per_node
                                                                  : 50e9 * per_node;
  type.inter = {ports, 9.6e-6, 0.96};
  if (a.generation == Generation::kTpu) type.inter = {a.link * per_node, 2e-6, 0.8};
  if (a.generation == Generation::kCpu) {
    type.inter = {1.25e9, 25e-6, 0.8};
    cluster.library = Library::kWeft;
    cluster.software = "weft";
  }
  cluster.accelerators = {a};
  cluster.nodes = {type};
  return with_nodes(std::move(cluster), nodes);
}

Cluster cluster_of_system(std::string_view system, int nodes, int per_node) {
  const System& s = known_system(system);
  const Accelerator& a = known_accelerator(s.accelerator);
  NodeType type{.devices = per_node > 0 ? per_node : s.per_node,
                .count = nodes,
                .wiring = s.wiring,
                .intra = intra_of(a, s.wiring),
                .inter = inter_of(s)};
  if (!s.intra.empty()) type.intra = known_link(s.intra);
  if (s.intra_share > 0) type.intra.share = s.intra_share;
  Cluster cluster{.name = s.name,
                  .source = s.source,
                  .software = s.software,
                  .library = a.generation == Generation::kCpu ? Library::kWeft : Library::kNccl,
                  .accelerators = {a},
                  .nodes = {type}};
  return with_nodes(std::move(cluster), nodes);
}

}  // namespace weft::plan
