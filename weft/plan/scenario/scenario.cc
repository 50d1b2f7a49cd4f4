#include "weft/plan/scenario/scenario.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "weft/base/error.h"
#include "weft/base/json/json.h"
#include "weft/plan/cluster/catalog.h"
#include "weft/plan/cluster/cluster_file.h"
#include "weft/plan/scenario/internal/fields.h"
#include "weft/plan/scenario/internal/model_fields.h"

namespace weft::plan {
namespace {

using internal::Fields;
using internal::read_model;
using nlohmann::json;
using schedule::pipeline::Algorithm;

constexpr std::size_t kMaxLine = 64 << 10;
constexpr double kCompiledLoss = 4;  // Bytes of a 16-bit logit and its gradient.

const json* part(const json& line, const char* name) {
  const auto at = line.find(name);
  return at == line.end() ? nullptr : &*at;
}

// "dp": the ranks that the other axes leave, unless it is given.
struct Axes {
  int dp = 0, fsdp = 1, tp = 1, pp = 1, cp = 1, ep = 1;
};

int axis(Fields& f, Fields::Names names, int otherwise) {
  return static_cast<int>(f.whole(names, {1, 1e6}).value_or(otherwise));
}

Axes read_axes(Fields& f) {
  Axes a;
  a.dp = axis(f, {"dp", "data_parallel", "dp_replicate"}, 0);
  a.fsdp = axis(f, {"fsdp", "dp_shard", "fsdp_or_dp_shard"}, 1);
  a.tp = axis(f, {"tp", "tensor_parallel", "model_parallel"}, 1);
  a.pp = axis(f, {"pp", "pipeline_parallel"}, 1);
  a.cp = axis(f, {"cp", "context_parallel"}, 1);
  a.ep = axis(f, {"ep", "expert_parallel"}, 1);
  return a;
}

// Ranks that the axes name: all of them multiplied; without dp, at least one replica.
double ranks_of(const Axes& a) {
  return static_cast<double>(std::max(1, a.dp)) * a.fsdp * a.tp * a.pp * a.cp * a.ep;
}

void change_links(Fields& f, Cluster& cluster, bool system) {
  const auto intra = f.text({"intra"}), inter = f.text({"inter"});
  for (NodeType& type : cluster.nodes) {
    if (intra && *intra != "none") {
      const Link link = known_link(*intra);
      type.wiring =
          link.bandwidth < 70e9 && type.wiring != Wiring::kShared ? Wiring::kHost : type.wiring;
      type.intra = link;
    }
    if (inter && *inter != "none") {
      // A link is a port. Systems have as many as make up their bandwidth; nodes of SXM modules one
      // for each device.
      const Link port = known_link(*inter);
      const bool module = type.wiring == Wiring::kSwitch && port.bandwidth >= 25e9;
      double ports = module ? type.devices : 1;
      if (system) ports = std::max(1.0, std::round(type.inter.bandwidth / port.bandwidth));
      const double share = system ? type.inter.share : port.share;
      type.inter = {port.bandwidth * ports, port.latency, share};
    }
  }
}

int devices_per_node(Fields& f, int usual, double ranks) {
  const int given = axis(f, {"per_node", "gpus_per_node", "devices_per_node"}, 0);
  if (given > 0) return given;
  return static_cast<int>(std::max(1.0, std::min<double>(usual, ranks)));
}

// Says which entry of the catalog a part of its name stands for.
void note_name(const char* what, const std::string& given, const std::string& found,
               std::vector<std::string>& notes) {
  if (given != found) notes.push_back(std::string(what) + ": " + found);
}

// `given`: "gpus". It decides nothing beside "nodes" or "file", and nodes are whole.
void check_world(std::optional<std::int64_t> given, bool has_nodes, int devices,
                 std::vector<std::string>& notes) {
  if (!given || *given == devices) return;
  if (has_nodes) {
    notes.emplace_back("ignored cluster.gpus, since cluster.nodes is given");
    return;
  }
  throw Error(Errc::kInvalidArgument,
              "cluster.gpus is " + std::to_string(*given) + ", but the nodes of the cluster have " +
                  std::to_string(devices) +
                  " devices; use a multiple of cluster.per_node, and leave it out with "
                  "cluster.file");
}

Cluster read_cluster(const json* object, const Axes& axes, std::vector<std::string>& notes) {
  Fields f(object, "cluster");
  const auto file = f.text({"file"}), system = f.text({"system"}),
             accelerator = f.text({"accelerator", "gpu", "device"});
  const auto given_nodes = f.whole({"nodes", "num_nodes"}, {1, 1e6});
  const auto given_world = f.whole({"gpus", "devices", "world"}, {1, 1e6});
  const double ranks = given_world ? static_cast<double>(*given_world) : ranks_of(axes);
  Cluster cluster;
  if (file) {
    cluster = load_cluster(*file);
    if (given_nodes) cluster = with_nodes(std::move(cluster), static_cast<int>(*given_nodes));
  } else {
    WEFT_REQUIRE(system || accelerator, "cluster needs \"system\", \"accelerator\" or \"file\"");
    const int usual = system ? known_system(*system).per_node : 8;
    // Without dp, the plan does not say how many ranks there are.
    const bool open = axes.dp == 0 && !given_world && given_nodes;
    const int per_node = devices_per_node(f, usual, open ? 1e6 : ranks);
    const double nodes =
        given_nodes ? static_cast<double>(*given_nodes) : std::ceil(ranks / per_node);
    WEFT_REQUIRE(nodes * per_node <= 1e6, "cluster: more than a million devices");
    const int count = static_cast<int>(nodes);
    cluster = system ? cluster_of_system(*system, count, per_node)
                     : cluster_of_accelerator(*accelerator, count, per_node);
    if (system && accelerator) {
      const Cluster other = cluster_of_accelerator(*accelerator, 1, per_node);
      if (other.accelerators[0].name != cluster.accelerators[0].name) {
        cluster.accelerators = other.accelerators;
        cluster.nodes[0].intra = other.nodes[0].intra;
        cluster.nodes[0].wiring = other.nodes[0].wiring;
      }
    }
  }
  check_world(given_world, given_nodes.has_value(), devices(cluster), notes);
  if (accelerator && !file)
    note_name("accelerator", *accelerator, cluster.accelerators[0].name, notes);
  if (system && !file) note_name("system", *system, known_system(*system).name, notes);
  change_links(f, cluster, system.has_value());
  if (const auto price = f.number({"price_per_hour"}, {0, 1e6}))
    for (Accelerator& a : cluster.accelerators) a.price = *price;
  f.has({"name"});
  for (const std::string& name : f.unknown()) notes.push_back("ignored " + name);
  return cluster;
}

// Accepts the axes in weft's sense (all multiply to the world), with ep counted inside dp
// (Megatron-LM, Alpa), and with fsdp as a property of dp's ranks.
void fit_axes(Axes a, int world, Layout& l, std::vector<std::string>& notes) {
  const double others = static_cast<double>(a.fsdp) * a.tp * a.pp * a.cp * a.ep;
  const double without = static_cast<double>(a.tp) * a.pp * a.cp;
  if (a.dp == 0) {
    if (std::fmod(world, others) == 0) {
      a.dp = static_cast<int>(world / others);
    } else if (a.ep > 1 && std::fmod(world, others / a.ep) == 0) {
      a.dp = static_cast<int>(world / (others / a.ep));
    } else {
      a.dp = 1;
    }
  }
  const double data = static_cast<double>(a.dp) * a.fsdp;
  if (data * without * a.ep != world) {
    if (a.ep > 1 && data * without == world && a.dp % a.ep == 0) {
      a.dp /= a.ep;
      notes.emplace_back("ep counts inside dp");
    } else if (a.ep > 1 && data * without == world && a.fsdp % a.ep == 0) {
      a.fsdp /= a.ep;
      notes.emplace_back("ep counts inside fsdp");
    } else if (a.fsdp > 1 && a.dp * without * a.ep == world && a.dp % a.fsdp == 0) {
      a.dp /= a.fsdp;
      notes.emplace_back("fsdp counts inside dp");
    }
  }
  l.dp = a.dp;
  l.fsdp = a.fsdp;
  l.tp = a.tp;
  l.pp = a.pp;
  l.cp = a.cp;
  l.ep = a.ep;
}

Algorithm read_schedule(Fields& f, const Layout& l) {
  std::string name = f.text({"schedule", "pipeline_schedule"}).value_or("");
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (name.find("interleaved") != std::string::npos) name = "interleaved";
  if (name == "afab" || name == "f-then-b") name = "gpipe";
  if (name.empty() || name == "none" || name == "pipedream" || name == "pipedream-flush")
    name = "1f1b";
  const Algorithm algorithm = schedule::pipeline::parse_algorithm(name);
  if (algorithm == Algorithm::kOneForwardOneBackward && l.virtual_stages > 1 && l.pp > 1)
    return Algorithm::kInterleaved;
  if (algorithm == Algorithm::kInterleaved && (l.virtual_stages < 2 || l.pp == 1))
    return Algorithm::kOneForwardOneBackward;
  return algorithm;
}

Precision default_precision(const Cluster& cluster) {
  const Accelerator& a = cluster.accelerators[0];
  if (a.generation == Generation::kCpu || a.generation == Generation::kPascal)
    return Precision::kFp32;
  return a.generation == Generation::kVolta ? Precision::kFp16 : Precision::kBf16;
}

void read_batch(Fields& f, Layout& l) {
  const int replicas = replicas_of(l);
  const auto micro = f.whole({"micro_batch", "micro_batch_size", "mbs"}, {1, 1e6});
  const auto count = f.whole({"micro_batches", "num_micro_batches"}, {1, 1e6});
  const auto global = f.whole({"global_batch", "global_batch_size", "gbs"}, {1, 1e9});
  const std::int64_t m = count.value_or(l.pp > 1 ? 4 * l.pp : 1);
  l.micro_batch = static_cast<int>(micro.value_or(1));
  if (!micro && global)
    l.micro_batch =
        static_cast<int>(std::clamp<std::int64_t>(*global / (replicas * m), 1, 1'000'000));
  l.global_batch = global.value_or(static_cast<std::int64_t>(l.micro_batch) * replicas * m);
}

Layout read_layout(Fields& f, const Axes& axes, const Cluster& cluster,
                   std::vector<std::string>& notes) {
  Layout l;
  fit_axes(axes, devices(cluster), l, notes);
  l.virtual_stages = axis(f, {"virtual_stages", "virtual_stages_per_rank"}, 1);
  if (l.pp == 1) l.virtual_stages = 1;
  l.schedule = read_schedule(f, l);
  if (l.schedule == Algorithm::kZeroBubbleV) l.virtual_stages = 2;
  const auto zero = f.whole({"zero_stage", "zero"}, {0, 3});
  l.zero_stage = static_cast<int>(zero.value_or(l.fsdp > 1 ? 3 : 0));
  read_batch(f, l);
  l.recompute = parse_recompute(f.text({"recompute", "activation_checkpointing"}).value_or(""));
  l.precision = default_precision(cluster);
  if (const auto precision = f.text({"precision", "dtype"}))
    l.precision = parse_precision(*precision);
  for (const double cut : f.numbers({"cuts"}, {1, 1e6})) l.cuts.push_back(static_cast<int>(cut));
  l.shares = f.numbers({"shares"}, {1e-3, 1e3});
  l.codec = f.text({"codec"}).value_or("none");
  l.rule = parse_rule(f.text({"strategy"}).value_or("sync"));
  return l;
}

// True if flags such as recompute are given as booleans: {"recompute": true}.
void booleans_to_text(json& plan) {
  for (const char* name : {"recompute", "activation_checkpointing"}) {
    const auto at = plan.find(name);
    if (at != plan.end() && at->is_boolean()) *at = at->get<bool>() ? "full" : "none";
  }
}

// What Megatron-Core's recipes do where a scenario does not say otherwise: the distributed
// optimizer, and interleaved stages of two layers, else of one.
void core_layout(Fields& f, Job& job) {
  Layout& l = job.layout;
  if (!f.has({"zero_stage", "zero"})) l.zero_stage = std::max(l.zero_stage, 1);
  const bool says = f.has({"virtual_stages", "virtual_stages_per_rank"}) ||
                    f.has({"schedule", "pipeline_schedule"}) || f.has({"cuts"});
  if (says || l.pp == 1 || micro_batches_of(l) % l.pp != 0) return;
  const std::int64_t layers = (job.model.layers + l.pp - 1) / l.pp;
  const std::int64_t stages = layers % 2 == 0 ? layers / 2 : layers;
  if (stages < 2 || job.model.layers % (l.pp * stages) != 0) return;
  l.virtual_stages = static_cast<int>(stages);
  l.schedule = Algorithm::kInterleaved;
}

void read_rest(Fields& f, Job& job, std::vector<std::string>& notes) {
  std::string name = f.text({"software", "framework"}).value_or("");
  if (name.empty()) {
    name = default_software(job.model, job.cluster, job.layout);
    notes.push_back("software: " + name);
  }
  const Generation g = job.cluster.accelerators[0].generation;
  const bool recent = g == Generation::kHopper || g == Generation::kBlackwell;
  name = software(name).name;
  if (name == "megatron" && recent) {
    name = "megatron_core";
    notes.push_back("software: " + name);
  }
  job.software = software(name);
  if (name == "megatron_core") core_layout(f, job);
  if (name == "torchtitan") job.software.compiled = recent;
  if (const auto compiled = f.flag({"compile", "compiled"})) job.software.compiled = *compiled;
  job.software.compiles_loss = f.flag({"compile_loss"}).value_or(false);
  if (job.software.compiled) job.software.loss_kept *= 0.75;
  if (job.software.compiles_loss) job.software.loss_kept = kCompiledLoss;
  if (const auto async = f.flag({"async_tp"})) job.software.hides_tensor = *async;
  if (const auto async = f.flag({"async_p2p"})) job.software.overlaps_messages = *async;
  if (const auto graphs = f.text({"cuda_graphs"})) job.software.graphs = parse_graphs(*graphs);
  if (const auto hides = f.flag({"overlap_experts"})) job.software.overlaps_experts = *hides;
  if (const auto once = f.flag({"tokens_once"})) job.software.sends_tokens_once = *once;
  if (const auto kind = f.text({"selective"})) job.software.selective = parse_selective(*kind);
  if (const auto flash = f.flag({"flash", "flash_attention"})) job.software.flash = *flash;
  const auto sequence = f.flag({"sequence_parallel", "sp"});
  const bool usual = name == "torchtitan" || name == "nanotron" || name == "megatron_core";
  job.layout.sequence_parallel = job.layout.tp > 1 && sequence.value_or(usual);
  const bool adam = is_transformer(job.model) || name == "alpa";
  const bool narrow = job.model.family == Family::kMoe && name == "alpa";
  job.optimizer = optimizer_of(f.text({"optimizer"})
                                   .value_or(narrow ? "adam16"
                                             : adam ? "adam"
                                                    : "momentum"));
  job.loading = f.number({"loading_s"}, {0, 1e5}).value_or(0);
  job.noise = f.number({"noise"}, {0, 10}).value_or(0);
}

}  // namespace

std::string default_software(const Model& model, const Cluster& cluster, const Layout& layout) {
  const Generation g = cluster.accelerators[0].generation;
  if (!cluster.software.empty()) return cluster.software;
  if (g == Generation::kCpu) return "weft";
  if (g == Generation::kTpu) return "gpipe";
  if (!is_transformer(model) || model.family == Family::kBert || model.family == Family::kVit)
    return "torch_ddp";
  const bool recent = g == Generation::kHopper || g == Generation::kBlackwell;
  if (recent && model.family == Family::kGpt && layout.fsdp == 1 && layout.zero_stage < 3)
    return "megatron_core";
  if (recent || model.family == Family::kLlama)
    return layout.fsdp > 1 || layout.zero_stage == 3 ? "torchtitan" : "nanotron";
  return cluster.name == "DLPerf cluster" ? "megatron_2020" : "megatron";
}

Scenario parse_scenario(std::string_view line, const std::string& name) {
  if (line.size() > kMaxLine)
    throw Error(Errc::kCorrupt, name + ": the line has more than 65536 bytes");
  json document = parse_json(line, name, {.depth = 8});
  if (!document.is_object())
    throw Error(Errc::kCorrupt, name +
                                    ": a scenario is an object: {\"model\": …, \"cluster\": …, "
                                    "\"plan\": …}");
  for (const char* needed : {"model", "cluster"}) {
    WEFT_REQUIRE(part(document, needed) != nullptr,
                 std::string("the scenario has no \"") + needed + "\"");
  }
  json plan = part(document, "plan") != nullptr ? *part(document, "plan") : json::object();
  if (plan.is_object()) booleans_to_text(plan);
  Scenario scenario;
  for (const char* id : {"id", "name"})
    if (scenario.id.empty() && part(document, id) != nullptr)
      scenario.id = part(document, id)->dump(-1, ' ', false, json::error_handler_t::replace);
  Fields f(&plan, "plan");
  const Axes axes = read_axes(f);
  Job& job = scenario.job;
  job.model = read_model(part(document, "model"), scenario.notes);
  job.cluster = read_cluster(part(document, "cluster"), axes, scenario.notes);
  check(job.cluster, "cluster");
  job.layout = read_layout(f, axes, job.cluster, scenario.notes);
  read_rest(f, job, scenario.notes);
  for (const std::string& unknown : f.unknown()) scenario.notes.push_back("ignored " + unknown);
  for (const auto& [key, value] : document.items()) {
    (void)value;
    const bool known =
        key == "model" || key == "cluster" || key == "plan" || key == "id" || key == "name";
    if (!known) scenario.notes.push_back("ignored " + key.substr(0, 60));
  }
  if (job.model.only_parameters <= 0) complete(job.model);
  check(job.layout, devices(job.cluster));
  return scenario;
}

}  // namespace weft::plan
