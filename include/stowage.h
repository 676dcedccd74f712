/* SPDX-License-Identifier: Apache-2.0 */
/* Everything public of libstowage: models, specs and plans, and the backends that execute them.
 * Each header says who owns what and which threads may call. The planner and the simulator are not
 * in the library: a plan comes from the program `stowage`, as a file. */
#ifndef STOWAGE_H
#define STOWAGE_H

#include "core/log.h"
#include "core/status.h"
#include "core/units.h"

#include "models/model.h"
#include "models/safetensors.h"

#include "plan/cluster.h"
#include "plan/compare.h"
#include "plan/decisions.h"
#include "plan/demand.h"
#include "plan/job.h"
#include "plan/layout.h"
#include "plan/plan.h"
#include "plan/program.h"
#include "plan/run_file.h"
#include "plan/run_spec.h"

#include "backend/backend.h"
#include "backend/comm/comm.h"
#include "backend/executor/executor.h"

#endif
