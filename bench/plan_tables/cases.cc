#include "bench/plan_tables/cases.h"

#include <algorithm>

#include "bench/plan_tables/internal/adapters.h"

namespace weft::plan::tables {
namespace internal {
namespace {

struct NamedAdapter {
  const char* table;
  Adapter adapter;
};
constexpr NamedAdapter kAdapters[] = {
    {"megatron_sc21_table1", sc21_row},
    {"act_recompute_table4_layer_times", recompute_layer_row},
    {"act_recompute_table5_end_to_end", recompute_end_row},
    {"megatron_readme_2020_v100_a100", readme_2020_row},
    {"megatron_h100_2024", h100_2024_row},
    {"megatron_bridge", bridge_row},
    {"large_runs", large_runs_row},
    {"bloom_176b_tuning_a100", bloom_row},
    {"nanotron_llama1b", nanotron_row},
    {"torchtitan", torchtitan_row},
    {"dlperf_gpt_v100", dlperf_gpt_row},
    {"dlperf_data_parallel_v100", dlperf_data_parallel_row},
    {"dlperf_deepspeed_zero1_v100", dlperf_zero_row},
    {"deepspeed_misc", deepspeed_misc_row},
    {"alpa_2021_v100_32gb", alpa_2021_row},
    {"alpa_osdi22_e2e", alpa_osdi_row},
    {"zero_table1_memory", zero_table1_row},
    {"zero_table2_max_model", zero_table2_row},
    {"gpipe_table1_memory", gpipe_memory_row},
    {"gpipe_throughput", gpipe_throughput_row},
    {"torchgpipe_p40", torchgpipe_row},
    {"nccl_collectives", nccl_collectives_row},
    {"nccl_busbw_summary", nccl_summary_row},
};

struct NoAdapter {
  const char* table;
  const char* reason;
};
constexpr NoAdapter kNone[] = {
    {"formulas", "formulas: unit tests of weft/plan check them"},
    {"hardware_accelerators", "the catalog of accelerators"},
    {"hardware_links", "the catalog of links"},
    {"hardware_systems", "the catalog of systems"},
    {"nccl_tuning_constants", "constants of the cost of collectives"},
    {"act_recompute_memory_claims", "differences within one run, without their layouts"},
    {"megatron_sc21_text_claims", "results of other tables, and claims without layouts"},
    {"fashion_mnist_accuracy", "accuracies"},
    {"lm_losses", "losses"},
    {"resnet101_large_batch_top1", "accuracies"},
    {"cifar10_accuracy_and_speed", "accuracies, and times to an accuracy"},
};

}  // namespace

Adapter find_adapter(const std::string& table) {
  for (const NamedAdapter& one : kAdapters)
    if (table == one.table) return one.adapter;
  return nullptr;
}

std::string why_none(const std::string& table) {
  for (const NoAdapter& one : kNone)
    if (table == one.table) return one.reason;
  return "";
}

Case& Builder::add(const std::string& label, const Json& scenario, Quantity quantity,
                   double measured) {
  cases_.cases.push_back({.table = table_.name,
                          .label = label,
                          .scenario = scenario.dump(),
                          .quantity = quantity,
                          .measured = measured});
  return cases_.cases.back();
}

Case& Builder::formula(const std::string& label, double predicted, double measured, double digit) {
  cases_.cases.push_back({.table = table_.name,
                          .label = label,
                          .predicted = predicted,
                          .quantity = Quantity::kFormula,
                          .measured = measured,
                          .digit = digit});
  return cases_.cases.back();
}

void Builder::skip(int rows, const std::string& reason) {
  for (Skipped& one : cases_.skipped) {
    if (one.table == table_.name && one.reason == reason) {
      one.rows += rows;
      return;
    }
  }
  cases_.skipped.push_back({table_.name, rows, reason});
}

Json gpt_json(const Gpt& gpt) {
  Json model = {{"family", "gpt"},
                {"layers", gpt.layers},
                {"hidden", gpt.hidden},
                {"vocab", gpt.vocab},
                {"sequence", gpt.sequence}};
  if (gpt.heads > 0) model["heads"] = gpt.heads;
  return model;
}

}  // namespace internal

Cases cases_of(const CsvTable& table) {
  Cases cases;
  internal::Builder builder(table, cases);
  const internal::Adapter adapter = internal::find_adapter(table.name);
  if (adapter == nullptr) {
    const std::string reason = internal::why_none(table.name);
    builder.skip(static_cast<int>(table.rows.size()),
                 reason.empty() ? "the planner does not know this table" : reason);
    return cases;
  }
  for (std::size_t row = 0; row < table.rows.size(); ++row) adapter(CsvRow(table, row), builder);
  return cases;
}

}  // namespace weft::plan::tables
