// One function for each published table.
#pragma once

#include <nlohmann/json.hpp>

#include "bench/plan_tables/cases.h"

namespace weft::plan::tables::internal {

using Json = nlohmann::json;

// Builds the cases of one table.
class Builder {
 public:
  Builder(const CsvTable& table, Cases& cases) : table_(table), cases_(cases) {}

  const std::string& table() const { return table_.name; }
  Case& add(const std::string& label, const Json& scenario, Quantity quantity, double measured);
  Case& formula(const std::string& label, double predicted, double measured, double digit);
  void skip(int rows, const std::string& reason);

 private:
  const CsvTable& table_;
  Cases& cases_;
};

// A transformer of these columns, with Megatron-LM's padded vocabulary.
struct Gpt {
  int layers = 0, hidden = 0, heads = 0;
  int vocab = 51200, sequence = 2048;
};
Json gpt_json(const Gpt& gpt);

using Adapter = void (*)(const CsvRow& row, Builder& builder);
Adapter find_adapter(const std::string& table);
// Why a table has no adapter; empty if it has one or is not known.
std::string why_none(const std::string& table);

// In files of their own.
void sc21_row(const CsvRow& row, Builder& b);
void recompute_layer_row(const CsvRow& row, Builder& b);
void recompute_end_row(const CsvRow& row, Builder& b);
void readme_2020_row(const CsvRow& row, Builder& b);
void h100_2024_row(const CsvRow& row, Builder& b);
void bridge_row(const CsvRow& row, Builder& b);
void large_runs_row(const CsvRow& row, Builder& b);
void bloom_row(const CsvRow& row, Builder& b);
void nanotron_row(const CsvRow& row, Builder& b);
void torchtitan_row(const CsvRow& row, Builder& b);
void dlperf_gpt_row(const CsvRow& row, Builder& b);
void dlperf_data_parallel_row(const CsvRow& row, Builder& b);
void dlperf_zero_row(const CsvRow& row, Builder& b);
void deepspeed_misc_row(const CsvRow& row, Builder& b);
void alpa_2021_row(const CsvRow& row, Builder& b);
void alpa_osdi_row(const CsvRow& row, Builder& b);
void zero_table1_row(const CsvRow& row, Builder& b);
void zero_table2_row(const CsvRow& row, Builder& b);
void gpipe_memory_row(const CsvRow& row, Builder& b);
void gpipe_throughput_row(const CsvRow& row, Builder& b);
void torchgpipe_row(const CsvRow& row, Builder& b);
void nccl_collectives_row(const CsvRow& row, Builder& b);
void nccl_summary_row(const CsvRow& row, Builder& b);

}  // namespace weft::plan::tables::internal
