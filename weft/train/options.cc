#include "weft/train/options.h"

#include "weft/base/error.h"
#include "weft/base/text/words.h"
#include "weft/optim/update_rule.h"
#include "weft/train/internal/key_uses.h"
#include "weft/train/internal/limits.h"
#include "weft/train/internal/optimizer_options.h"
#include "weft/train/internal/plan_keys.h"
#include "weft/train/internal/settings.h"

namespace weft::train {
namespace {

// The keys of options_schema() that are not members of Options.
Schema keys_of_weft_train() {
  return {
      {"comm.transport", "auto",
       "Transport: shm (shared memory), tcp, mpi (under mpirun), nccl (for train.device = cuda), "
       "or auto.",
       internal::one_of({"auto", "shm", "tcp", "mpi", "nccl"})},
      {"comm.timeout_s", 300.0, "Seconds to wait for a peer before an operation fails.",
       internal::between(0.1, 86400)},
      {"comm.interface", "",
       "Address, network (10.0.0.0/8) or interface for TCP. Empty: found automatically."},
      {"run.recipe", "", "Recipe that the run was started from; set by weft train."}};
}

class Writing final : public internal::SettingsVisitor {
 public:
  explicit Writing(Config& config) : config_(config) {}

 private:
  void visit(const Key& key, ConfigValue& value) override {
    if (value != config_.get(key.name)) config_.set(key.name, value, "the program");
  }
  Config& config_;
};

bool is_power_of_two(std::int64_t n) { return n > 0 && (n & (n - 1)) == 0; }

}  // namespace

bool saves_checkpoints(const Options& options) {
  return options.checkpoint_every > 0 || options.checkpoint_steps > 0 ||
         options.checkpoint_minutes > 0 || options.keep_best;
}

parallel::Plan default_plan() {
  return {.optimizer = {.rule = kernels::Sgd{.lr = 0.1, .momentum = 0.9}},
          .seed = 1,
          .micro_batches = 0,
          .data_parallel = {.overlap_forward = true}};
}

Schema options_schema() {
  Schema schema;
  internal::SchemaVisitor visit(schema);
  Options defaults;
  each_setting(defaults, visit);
  return schema.add(keys_of_weft_train());
}

Options options_of(const Config& config) {
  internal::check_optimizer_keys(config);
  internal::check_device_key(config);
  Options options;
  internal::ReadingVisitor visit(config);
  each_setting(options, visit);
  return options;
}

Options load_options(const std::string& file, const std::vector<std::string>& assignments) {
  Config config = Config::load(file, options_schema());
  for (const auto& assignment : assignments) config.set(assignment);
  for (const auto& row : config.describe()) {
    const bool is_comm = row.key.starts_with("comm.");
    if ((!is_comm && row.key != "run.recipe") || row.value == row.fallback) continue;
    throw Error(Errc::kBadConfig,
                row.key + " (" + row.origin + ") has no effect on a program: " +
                    (is_comm ? "pass InitOptions to weft::init() in its place" : "leave it out"));
  }
  internal::refuse_unused_keys(config);
  internal::check_plan_keys(config);
  return options_of(config);
}

Config config_of(const Options& options) {
  Config config(options_schema());
  Options copy = options;
  Writing visit(config);
  each_setting(copy, visit);
  return config;
}

Batches plan_batches(const Options& options, int replicas, std::int64_t samples) {
  Batches batches;
  batches.global = options.batch_per_rank > 0 ? options.batch_per_rank * replicas : options.batch;
  if (batches.global < replicas) {
    throw Error(Errc::kBadConfig, "train.batch = " + std::to_string(batches.global) +
                                      " cannot be divided over " + counted(replicas, "rank") +
                                      "; give at least one sample to each");
  }
  batches.per_epoch = (samples + batches.global - 1) / batches.global;
  batches.base_rate = optim::lr_of(options.plan.optimizer.rule);
  if (options.reference_batch > 0)
    batches.base_rate =
        optim::linear_scaling(batches.base_rate, 1, batches.global, options.reference_batch);
  const auto shards = options.plan.micro_shards;
  if (shards == 0) return batches;
  if (!is_power_of_two(shards) || shards % replicas != 0) {
    throw Error(Errc::kBadConfig,
                "train.micro_shards = " + std::to_string(shards) +
                    " must be a power of two and a multiple of the " + std::to_string(replicas) +
                    " ranks that share the batch, where train.reproducible is set");
  }
  const auto refuse = [](const std::string& why) {
    throw Error(Errc::kBadConfig, why + " where train.reproducible is set");
  };
  if (options.balance_by_speed) {
    refuse(
        "train.balance = \"speed\" splits batches by times, which no two runs have alike; leave it "
        "\"even\"");
  }
  if (options.on_resize == OnResize::kScale) {
    refuse(
        "train.on_resize = \"scale\" changes the batch with the number of ranks; leave it at "
        "\"keep_global_batch\"");
  }
  if (options.on_straggler == OnStraggler::kRebalance) {
    refuse(
        "train.on_straggler = \"rebalance\" splits batches by times, which no two runs have alike; "
        "leave it \"warn\"");
  }
  if (options.plan.sync_batch_norm) {
    refuse(
        "model.sync_batch_norm takes statistics over what the ranks have at a time, which differs "
        "at each number of ranks; leave it false");
  }
  if (options.plan.codec != "none") {
    refuse(
        "parallel.codec rounds gradients differently at each number of ranks; leave it at "
        "\"none\"");
  }
  return batches;
}

}  // namespace weft::train
