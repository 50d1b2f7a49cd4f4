#include "weft/plan/cluster/cluster_file.h"

#include <algorithm>
#include <iomanip>
#include <limits>
#include <locale>
#include <map>
#include <sstream>

#include "weft/base/config.h"
#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/log.h"
#include "weft/plan/cluster/catalog.h"

namespace weft::plan {
namespace {

using Strings = std::vector<std::string>;
using Doubles = std::vector<double>;
using Ints = std::vector<std::int64_t>;

constexpr const char* kWirings[] = {"switch", "cube_mesh", "host", "shared", "torus"};
constexpr const char* kGenerations[] = {"other",  "pascal",    "volta", "ampere",
                                        "hopper", "blackwell", "tpu",   "cpu"};

template <std::size_t N>
Strings list_of(const char* const (&names)[N]) {
  return Strings(names, names + N);
}

// Digits of numbers: reading and writing again gives the same text.
constexpr int kDigits = 12;

// Most entries of the lists of one file.
constexpr std::size_t kMaxEntries = 4096;

Limits positive(double most) { return {.min = 1e-9, .max = most, .choices = {}}; }
Limits at_least_0(double most) { return {.min = 0, .max = most, .choices = {}}; }

Schema cluster_schema() {
  Schema schema{
      {"name", "", "Name of the cluster."},
      {"source", "", "Where the figures come from."},
      {"machine", "", "Identity of the machine on which a profile was taken."},
      {"software", "", "Default software of scenarios."},
      {"library", "nccl", "Library of collectives.", {.choices = {"nccl", "weft"}}},
      {"node.accelerator", Strings{}, "Accelerator of each type of node."},
      {"node.devices", Ints{}, "Devices of a node.", {.min = 1, .max = 65536}},
      {"node.count", Ints{}, "Nodes of each type. Default: 1.", {.min = 1, .max = 1e6}},
      {"node.processors",
       Ints{},
       "Devices that compute at once. Default, 0: all.",
       {.min = 0, .max = 65536}},
      {"node.wiring", Strings{}, "How devices are connected.", {.choices = list_of(kWirings)}},
      {"node.intra_gb_per_s", Doubles{}, "GB/s of one device to its neighbors.", positive(1e6)},
      {"node.intra_latency_us", Doubles{}, "Latency inside a node.", at_least_0(1e6)},
      {"node.intra_share", Doubles{}, "Share that collectives reach.", {.min = 0.001, .max = 1}},
      {"node.inter_gb_per_s", Doubles{}, "GB/s of a node to other nodes.", positive(1e6)},
      {"node.inter_latency_us", Doubles{}, "Latency between nodes.", at_least_0(1e6)},
      {"node.inter_share", Doubles{}, "Share that collectives reach.", {.min = 0.001, .max = 1}}};
  return schema;
}

Schema accelerator_schema() {
  Schema schema{
      {"accelerator.name", Strings{}, "Names of accelerators that are described here."},
      {"accelerator.generation", Strings{}, "Generation.", {.choices = list_of(kGenerations)}},
      {"accelerator.memory_gb", Doubles{}, "Memory in GB.", positive(1e6)},
      {"accelerator.bandwidth_gb_per_s", Doubles{}, "Memory bandwidth.", positive(1e6)},
      {"accelerator.units", Ints{}, "Units that run tiles.", {.min = 1, .max = 1e6}},
      {"accelerator.achievable_tflops", Doubles{}, "Best measured product.", at_least_0(1e6)},
      {"accelerator.watts", Doubles{}, "Power.", at_least_0(1e6)},
      {"accelerator.price_per_hour", Doubles{}, "Dollars an hour.", at_least_0(1e6)},
      {"rates.accelerator", Strings{}, "Accelerator of each measured product."},
      {"rates.m", Doubles{}, "Rows.", {.min = 1, .max = 1e9}},
      {"rates.n", Doubles{}, "Columns.", {.min = 1, .max = 1e9}},
      {"rates.k", Doubles{}, "Inner size.", {.min = 1, .max = 1e9}},
      {"rates.us", Doubles{}, "Microseconds.", positive(1e12)}};
  for (const char* precision : {"fp32", "tf32", "fp16", "bf16", "fp8", "fp4"}) {
    schema.add({"accelerator." + std::string(precision) + "_tflops", Doubles{}, "Peak TFLOP/s.",
                at_least_0(1e6)});
  }
  return schema;
}

// Reads parallel lists, each empty or with one entry for each name.
class Lists {
 public:
  Lists(const Config& config, std::string table, std::size_t size)
      : config_(config), table_(std::move(table)), size_(size) {}

  const Doubles& doubles(const char* key) const { return sized(key, config_.get_doubles(at(key))); }
  const Ints& ints(const char* key) const { return sized(key, config_.get_ints(at(key))); }
  const Strings& strings(const char* key) const { return sized(key, config_.get_strings(at(key))); }
  // The i-th number, or the default.
  double number(const char* key, std::size_t i, double otherwise) const {
    const Doubles& all = doubles(key);
    return all.empty() ? otherwise : all[i];
  }
  void need(const char* key) const {
    if (config_.origin(at(key)) == "default")
      fail(config_.origin(names_key()) + ": " + at(key) +
           " is missing; give one entry for each entry of " + names_key());
  }

 private:
  std::string at(const char* key) const { return table_ + "." + key; }
  std::string names_key() const { return at(table_ == "accelerator" ? "name" : "accelerator"); }
  [[noreturn]] void fail(const std::string& what) const { throw Error(Errc::kBadConfig, what); }
  template <typename List>
  const List& sized(const char* key, const List& list) const {
    if (!list.empty() && list.size() != size_) {
      throw Error(Errc::kBadConfig, config_.origin(at(key)) + ": " + at(key) + " has " +
                                        std::to_string(list.size()) + " entries, but " + table_ +
                                        " has " + std::to_string(size_));
    }
    return list;
  }

  const Config& config_;
  std::string table_;
  std::size_t size_;
};

template <std::size_t N>
int index_of(const char* const (&names)[N], const std::string& name) {
  return static_cast<int>(std::find(names, names + N, name) - names);
}

constexpr const char* kPeaks[] = {"fp32_tflops", "tf32_tflops", "fp16_tflops",
                                  "bf16_tflops", "fp8_tflops",  "fp4_tflops"};

std::vector<Accelerator> described(const Config& config) {
  const Strings& names = config.get_strings("accelerator.name");
  const Lists lists(config, "accelerator", names.size());
  std::vector<Accelerator> all;
  if (names.empty()) return all;
  lists.need("memory_gb");
  lists.need("bandwidth_gb_per_s");
  const Strings& generations = lists.strings("generation");
  const Ints& units = lists.ints("units");
  for (std::size_t i = 0; i < names.size(); ++i) {
    Accelerator a;
    a.name = names[i];
    if (!generations.empty())
      a.generation = static_cast<Generation>(index_of(kGenerations, generations[i]));
    for (std::size_t p = 0; p < a.peaks.size(); ++p)
      a.peaks[p] = lists.number(kPeaks[p], i, 0) * 1e12;
    a.achievable = lists.number("achievable_tflops", i, 0) * 1e12;
    a.memory = lists.number("memory_gb", i, 0) * 1e9;
    a.bandwidth = lists.number("bandwidth_gb_per_s", i, 0) * 1e9;
    a.units = units.empty() ? 1 : static_cast<int>(units[i]);
    a.watts = lists.number("watts", i, 0);
    a.price = lists.number("price_per_hour", i, 0);
    all.push_back(std::move(a));
  }
  return all;
}

void add_rates(const Config& config, std::vector<Accelerator>& all) {
  const Strings& of = config.get_strings("rates.accelerator");
  const Lists lists(config, "rates", of.size());
  if (of.empty()) return;
  for (const char* key : {"m", "n", "k", "us"}) lists.need(key);
  for (std::size_t i = 0; i < of.size(); ++i) {
    const auto at =
        std::find_if(all.begin(), all.end(), [&](const Accelerator& a) { return a.name == of[i]; });
    if (at == all.end()) {
      throw Error(Errc::kBadConfig, config.origin("rates.accelerator") + ": \"" + of[i] +
                                        "\" is not in accelerator.name");
    }
    at->rates.push_back({lists.number("m", i, 1), lists.number("n", i, 1), lists.number("k", i, 1),
                         lists.number("us", i, 1) * 1e-6});
  }
}

// Adds the accelerator of a node type to the cluster: described in the file, or known.
int accelerator_index(Cluster& cluster, const std::vector<Accelerator>& own,
                      const std::string& name, const std::string& where) {
  const auto same = [&](const Accelerator& a) { return a.name == name; };
  const auto there = std::find_if(own.begin(), own.end(), same);
  Accelerator wanted;
  if (there != own.end()) {
    wanted = *there;
  } else {
    try {
      wanted = known_accelerator(name);
    } catch (const Error& error) {
      throw Error(Errc::kBadConfig, where + ": " + error.message());
    }
  }
  const auto placed = std::find(cluster.accelerators.begin(), cluster.accelerators.end(), wanted);
  if (placed != cluster.accelerators.end())
    return static_cast<int>(placed - cluster.accelerators.begin());
  cluster.accelerators.push_back(std::move(wanted));
  return static_cast<int>(cluster.accelerators.size()) - 1;
}

void add_nodes(const Config& config, const std::vector<Accelerator>& own, Cluster& cluster) {
  const Strings& names = config.get_strings("node.accelerator");
  const Lists lists(config, "node", names.size());
  lists.need("devices");
  const Ints &devices = lists.ints("devices"), &counts = lists.ints("count"),
             &processors = lists.ints("processors");
  const Strings& wirings = lists.strings("wiring");
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::string& where = config.origin("node.accelerator");
    NodeType type{.accelerator = accelerator_index(cluster, own, names[i], where)};
    type.devices = static_cast<int>(devices[i]);
    type.count = counts.empty() ? 1 : static_cast<int>(counts[i]);
    type.processors = processors.empty() ? 0 : static_cast<int>(processors[i]);
    const Accelerator& a = cluster.accelerators[static_cast<std::size_t>(type.accelerator)];
    // Links that the file does not give are those that nodes of this accelerator usually have.
    const bool known = std::none_of(own.begin(), own.end(),
                                    [&](const Accelerator& one) { return one.name == a.name; });
    if (known) {
      const Cluster usual = cluster_of_accelerator(names[i], 1, type.devices);
      type.wiring = usual.nodes[0].wiring;
      type.intra = usual.nodes[0].intra;
      type.inter = usual.nodes[0].inter;
    } else {
      lists.need("intra_gb_per_s");
      lists.need("inter_gb_per_s");
    }
    if (!wirings.empty()) type.wiring = static_cast<Wiring>(index_of(kWirings, wirings[i]));
    const auto read = [&](Link& link, const std::string& which) {
      link.bandwidth = lists.number((which + "_gb_per_s").c_str(), i, link.bandwidth / 1e9) * 1e9;
      link.latency = lists.number((which + "_latency_us").c_str(), i, link.latency * 1e6) * 1e-6;
      link.share = lists.number((which + "_share").c_str(), i, link.share);
    };
    read(type.intra, "intra");
    read(type.inter, "inter");
    cluster.nodes.push_back(type);
  }
}

// Text of one list: a key and each entry's number.
template <typename Items, typename Value>
std::string list_line(const std::string& key, const Items& items, const Value& value) {
  std::ostringstream out;
  out.imbue(std::locale::classic());
  out << std::setprecision(kDigits) << key << " = [";
  for (std::size_t i = 0; i < items.size(); ++i) out << (i == 0 ? "" : ", ") << value(items[i]);
  out << "]\n";
  return out.str();
}

std::string quoted(const std::string& text) { return json_quote(text); }

std::string accelerators_toml(const std::vector<Accelerator>& all) {
  std::string text = "\n[accelerator]\n";
  const auto line = [&](const std::string& key, const auto& value) {
    text += list_line(key, all, value);
  };
  line("name", [](const Accelerator& a) { return quoted(a.name); });
  line("generation", [](const Accelerator& a) { return quoted(to_string(a.generation)); });
  for (std::size_t p = 0; p < std::size(kPeaks); ++p)
    line(kPeaks[p], [p](const Accelerator& a) { return a.peaks[p] / 1e12; });
  line("achievable_tflops", [](const Accelerator& a) { return a.achievable / 1e12; });
  line("memory_gb", [](const Accelerator& a) { return a.memory / 1e9; });
  line("bandwidth_gb_per_s", [](const Accelerator& a) { return a.bandwidth / 1e9; });
  line("units", [](const Accelerator& a) { return a.units; });
  line("watts", [](const Accelerator& a) { return a.watts; });
  line("price_per_hour", [](const Accelerator& a) { return a.price; });
  return text;
}

struct NamedRate {
  std::string accelerator;
  MatmulRate rate;
};

std::string rates_toml(const std::vector<Accelerator>& all) {
  std::vector<NamedRate> rates;
  for (const Accelerator& a : all)
    for (const MatmulRate& rate : a.rates) rates.push_back({a.name, rate});
  if (rates.empty()) return "";
  return "\n[rates]\n" +
         list_line("accelerator", rates, [](const NamedRate& r) { return quoted(r.accelerator); }) +
         list_line("m", rates, [](const NamedRate& r) { return r.rate.m; }) +
         list_line("n", rates, [](const NamedRate& r) { return r.rate.n; }) +
         list_line("k", rates, [](const NamedRate& r) { return r.rate.k; }) +
         list_line("us", rates, [](const NamedRate& r) { return r.rate.seconds * 1e6; });
}

std::string nodes_toml(const Cluster& cluster) {
  std::string text = "\n[node]\n";
  const auto line = [&](const std::string& key, const auto& value) {
    text += list_line(key, cluster.nodes, value);
  };
  line("accelerator", [&](const NodeType& n) {
    return quoted(cluster.accelerators[static_cast<std::size_t>(n.accelerator)].name);
  });
  line("devices", [](const NodeType& n) { return n.devices; });
  line("count", [](const NodeType& n) { return n.count; });
  line("processors", [](const NodeType& n) { return n.processors; });
  line("wiring",
       [](const NodeType& n) { return quoted(kWirings[static_cast<std::size_t>(n.wiring)]); });
  line("intra_gb_per_s", [](const NodeType& n) { return n.intra.bandwidth / 1e9; });
  line("intra_latency_us", [](const NodeType& n) { return n.intra.latency * 1e6; });
  line("intra_share", [](const NodeType& n) { return n.intra.share; });
  line("inter_gb_per_s", [](const NodeType& n) { return n.inter.bandwidth / 1e9; });
  line("inter_latency_us", [](const NodeType& n) { return n.inter.latency * 1e6; });
  line("inter_share", [](const NodeType& n) { return n.inter.share; });
  return text;
}

}  // namespace

Cluster parse_cluster(std::string_view toml, const std::string& source) {
  const Config config =
      Config::parse(toml, source, Schema().add(cluster_schema()).add(accelerator_schema()));
  Cluster cluster{.name = config.get_string("name"), .source = config.get_string("source")};
  if (config.get_strings("node.accelerator").empty())
    throw Error(Errc::kBadConfig, source + ": no nodes; give [node] accelerator and devices");
  if (config.get_strings("node.accelerator").size() > kMaxEntries ||
      config.get_strings("accelerator.name").size() > kMaxEntries)
    throw Error(Errc::kBadConfig, source + ": more than 4096 types of nodes");
  std::vector<Accelerator> own = described(config);
  add_rates(config, own);
  add_nodes(config, own, cluster);
  cluster.software = config.get_string("software");
  cluster.machine = config.get_string("machine");
  cluster.library = config.get_string("library") == "weft" ? Library::kWeft : Library::kNccl;
  if (cluster.name.empty()) cluster.name = source;
  check(cluster, source);
  return cluster;
}

Cluster load_cluster(const std::string& path) {
  return parse_cluster(read_file(path, 64 << 10), path);
}

std::string to_toml(const Cluster& cluster) {
  std::string text =
      "name = " + quoted(cluster.name) + "\nsource = " + quoted(cluster.source) +
      "\nsoftware = " + quoted(cluster.software) + "\nmachine = " + quoted(cluster.machine) +
      "\nlibrary = " + (cluster.library == Library::kWeft ? "\"weft\"" : "\"nccl\"") + "\n";
  return text + nodes_toml(cluster) + accelerators_toml(cluster.accelerators) +
         rates_toml(cluster.accelerators);
}

}  // namespace weft::plan
