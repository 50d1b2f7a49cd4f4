#include "weft/train/planner/planning.h"

#include <cmath>
#include <locale>
#include <sstream>

#include "weft/base/config.h"
#include "weft/base/error.h"
#include "weft/base/log.h"
#include "weft/plan/cluster/catalog.h"
#include "weft/plan/collectives/calibration.h"
#include "weft/strategy/strategy.h"
#include "weft/train/internal/planned_model.h"
#include "weft/train/internal/pretrained.h"
#include "weft/train/internal/recipe_settings.h"
#include "weft/train/recipe.h"

namespace weft::train {
namespace {

[[noreturn]] void refuse(const Config& config, const std::string& key, const std::string& what) {
  throw Error(Errc::kBadConfig,
              config.origin(key) + ": " + key + " = \"" + config.get_string(key) + "\": " + what);
}

plan::Model pretrained_model(const models::GptOptions& o, std::int64_t sequence) {
  const bool llama = o.positions == models::Positions::kRotary;
  plan::Model model = plan::default_model(llama ? "llama" : "gpt");
  model.layers = o.layers;
  model.hidden = o.width;
  model.heads = o.heads;
  model.kv_heads = o.kv_heads;
  model.head_width = o.head_width;
  model.ffn = o.hidden;
  model.sequence = sequence;
  model.vocab = o.vocabulary;
  model.experts = o.experts;
  model.top_k = o.experts > 0 ? o.experts_top_k : 1;
  model.expert_interval = 1;
  model.tied = o.tied;
  model.dropout = o.dropout > 0;
  return model;
}

plan::Model text_model(const Config& config, std::int64_t vocabulary) {
  const internal::RecipeSettings settings = internal::recipe_settings_of(config);
  const internal::ModelSettings& given = settings.model;
  if (const auto pretrained = internal::pretrained(settings))
    return pretrained_model(pretrained->options, given.sequence);
  const bool llama = given.family == internal::Family::kLlama;
  plan::Model model = plan::default_model(llama ? "llama" : "gpt");
  model.layers = given.layers;
  model.hidden = given.width;
  model.heads = given.heads;
  model.kv_heads = given.kv_heads;
  model.head_width = 0;
  model.ffn = 0;
  model.sequence = given.sequence;
  model.vocab = internal::vocabulary_of(config, vocabulary);
  model.experts = given.experts;
  model.top_k = model.experts > 0 ? given.experts_top_k : 1;
  model.expert_interval = 1;
  model.tied = !llama;
  model.dropout = given.dropout > 0;
  return model;
}

plan::Model image_model(const Config& config) {
  const internal::ModelSettings given = internal::recipe_settings_of(config).model;
  const std::string& name = given.name;
  if (name == "lstm" || name == "mlp" || name == "mixer")
    refuse(config, "model.name",
           "the planner does not describe this model; use gpt, vit, cnn or a "
           "resnet, or give a profile (weft plan profile)");
  plan::Model model = plan::default_model(name);
  model.image = 28;
  model.channels = 1;
  model.classes = 10;
  if (name == "vit") {
    model.layers = given.layers;
    model.hidden = given.width;
    model.heads = given.heads;
    model.patch = given.patch;
    model.ffn = model.kv_heads = model.head_width = 0;
    model.dropout = given.dropout > 0;
  }
  model.small_stem = given.stem == "3x3";
  return model;
}

plan::Precision planned_precision(const Config& config) {
  const std::string& name = config.get_string("train.precision");
  return name == "bf16"  ? plan::Precision::kBf16
         : name == "f16" ? plan::Precision::kFp16
                         : plan::Precision::kFp32;
}

plan::Optimizer planned_optimizer(const Config& config) {
  const std::string& name = config.get_string("optimizer.name");
  if (name == "sgd")
    return plan::optimizer_of(config.get_double("optimizer.momentum") > 0 ? "momentum" : "sgd");
  return plan::optimizer_of(name);
}

plan::Profile checked_profile(const std::string& file) {
  plan::Profile profile = plan::load_profile(file);
  if (!profile.machine.empty() && profile.machine != plan::machine_identity())
    log_warn(file + " was measured on another machine (" + profile.machine +
             "); run weft plan profile on this one");
  return profile;
}

// The model by its sizes, with the profile's times where they have the same blocks; else the
// profile's blocks.
plan::Model planned_model(const Config& config, const PlannedOptions& options) {
  if (options.is_program) return plan::measured_model(*options.blocks);
  const std::string& name = config.get_string("model.name");
  const bool described = name != "lstm" && name != "mlp" && name != "mixer";
  plan::Model model;
  const bool measured = options.blocks != nullptr || !options.profile.empty();
  if (described || !measured) {
    const bool text = is_text(config) && name == "gpt";
    model = plan::complete(text ? text_model(config, options.vocabulary) : image_model(config));
    if (!measured) return model;
  }
  plan::Profile profile =
      options.blocks != nullptr ? *options.blocks : checked_profile(options.profile);
  const plan::Split split = {.precision = plan::Precision::kFp32};
  if (!described || plan::blocks_of(model, split).size() != profile.blocks.size())
    return plan::measured_model(std::move(profile));
  model.profile = std::make_shared<const plan::Profile>(std::move(profile));
  return model;
}

}  // namespace

std::optional<std::int64_t> parameters_of(const Config& config) {
  const std::string& name = config.get_string("model.name");
  if (name == "lstm" || name == "mlp" || name == "mixer") return std::nullopt;
  return std::llround(plan::parameters(planned_model(config, {})));
}

plan::Job planned_job(const Config& config, const plan::Cluster& cluster,
                      const PlannedOptions& options) {
  plan::Job job;
  job.model = planned_model(config, options);
  job.cluster = cluster;
  job.software = plan::software("weft");
  job.optimizer = planned_optimizer(config);
  job.layout.precision = planned_precision(config);
  job.layout.global_batch = config.get_int("train.batch");
  job.layout.micro_batch = 1;
  job.layout.recompute = plan::parse_recompute(config.get_string("train.recompute"));
  return job;
}

namespace {

// The rule of a recipe. Throws Error(kBadConfig) for one that the planner does not know.
plan::Rule planned_rule(const Config& config) {
  const std::string& name = config.get_string("strategy.name");
  const std::int64_t period = config.get_int("strategy.period");
  if (config.get_int("strategy.backup") > 0)
    throw Error(Errc::kBadConfig,
                "strategy.backup cannot be planned; leave it at 0, or set the axes yourself");
  if (name == "sync") return {};
  try {
    return plan::parse_rule(name + ":" +
                            std::to_string(period > 0 ? period : strategy::default_period(name)));
  } catch (const Error& error) {
    throw Error(Errc::kBadConfig, "strategy.name: " + error.message());
  }
}

}  // namespace

plan::Space space_of(const Config& config) {
  plan::Space space;
  const internal::RecipeSettings settings = internal::recipe_settings_of(config);
  const internal::ModelSettings& model = settings.model;
  const bool gpt = model.name == "gpt";
  space.tp = gpt || model.name == "vit";
  space.cp = gpt;
  const auto given = internal::pretrained(settings);
  space.ep = gpt && (given ? given->options.experts : model.experts) > 0;
  if (!gpt) space.recomputes = {plan::Recompute::kNone, plan::Recompute::kFull};
  space.sequence_parallel = {false};
  space.rules = {planned_rule(config)};
  const bool is_sync = space.rules[0].is_sync();
  const std::string& codec = config.get_string(is_sync ? "parallel.codec" : "strategy.codec");
  if (codec != "auto") space.codecs = {codec};  // "auto": chosen while training
  return space;
}

std::string recipe_fragment(const plan::Layout& l, const plan::Job& job) {
  std::ostringstream out;
  out.imbue(std::locale::classic());
  out << "[train]\nbatch = " << l.global_batch << "\nrecompute = \"" << to_string(l.recompute)
      << "\"\n";
  if (!l.shares.empty()) out << "balance = \"speed\"\n";
  out << "\n[parallel]\n";
  for (const plan::Axis& axis : plan::axes_of(l))
    if (axis.size > 1 || axis.name == "dp") out << axis.name << " = " << axis.size << '\n';
  if (l.fsdp > 1) out << "zero_stage = " << l.zero_stage << '\n';
  out << "micro_batches = " << plan::micro_batches_of(l) << '\n';
  if (l.pp > 1) out << "schedule = \"" << to_string(l.schedule) << "\"\n";
  if (l.pp > 1 && !l.cuts.empty() && is_transformer(job.model)) {
    out << "cuts = [";
    for (std::size_t c = 0; c < l.cuts.size(); ++c) out << (c == 0 ? "" : ", ") << l.cuts[c];
    out << "]\n";
  }
  if (!l.rule.is_sync())
    out << "\n[strategy]\nname = \"" << l.rule.name << "\"\nperiod = " << l.rule.period << '\n';
  if (l.codec != "none") out << "codec = \"" << l.codec << "\"\n";
  return out.str();
}

}  // namespace weft::train
